"""GPT-2 in PyTorch, as its users write it, and the loop that times its steps: what the peers of the
benchmarks share.

Same sizes, batch and optimizer as `lockstep train --model gpt2`; dropout 0; gradient norm clipped
to 1. Attention is scaled_dot_product_attention, the fastest that PyTorch has. The loss is computed
in float32."""
import argparse
import contextlib
import json
import os
import resource
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def options():
    parser = argparse.ArgumentParser()
    for name, default in dict(layers=12, heads=12, embd=768, vocab=50257, seq=256, batch=4, steps=5,
                              threads=1, warmup=2, ranks=1, rank=0).items():
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--store", default="", help="file in which ranks meet")
    parser.add_argument("--metrics", default="", help="file: a JSON object after each step")
    return parser


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        c, self.heads = args.embd, args.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.c_attn, self.attn_proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.c_fc, self.mlp_proj = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, args):
        super().__init__()
        c = args.embd
        self.wte, self.wpe = nn.Embedding(args.vocab, c), nn.Embedding(args.seq, c)
        self.h = nn.ModuleList(Block(args) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(c)
        self.head = nn.Linear(c, args.vocab, bias=False)
        self.head.weight = self.wte.weight
        for param in self.parameters():
            if param.dim() > 1:
                nn.init.normal_(param, 0, 0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def start(args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    if args.ranks > 1:
        torch.distributed.init_process_group("gloo", init_method="file://" + args.store,
                                             rank=args.rank, world_size=args.ranks)


def autocast(args):
    return torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16")


def train(args, loss_of, model, optimizer, precision=contextlib.nullcontext):
    """Steps of one micro-batch; prints step_ms (every measured step), peak_rss_bytes, loss."""
    tokens, targets = torch.randint(0, args.vocab, (2, args.batch, args.seq))
    metrics = open(args.metrics, "w") if args.metrics else None
    step_ms = []
    for _ in range(args.warmup + args.steps):
        begin = time.perf_counter()
        with precision():
            loss = loss_of(tokens, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step_ms.append((time.perf_counter() - begin) * 1e3)
        if metrics:
            print(json.dumps(dict(step_ms=step_ms[-1])), file=metrics, flush=True)
    peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(dict(step_ms=step_ms[args.warmup:], loss=loss.item(),
                          peak_rss_bytes=peak_rss_bytes)), flush=True)
    if args.ranks > 1:  # taking gloo down may wait for ever for peers that have gone
        torch.distributed.barrier()
        os._exit(0)
