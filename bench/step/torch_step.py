"""One training step of GPT-2 in PyTorch, as its users write it: the peer of bench/step/run.sh.

Prints one JSON object: step_ms (every measured step), peak_rss_bytes, loss. Same sizes, batch and
optimizer as `lockstep train --model gpt2`; dropout 0; AdamW, gradient norm clipped to 1. bf16 is
autocast, the usual way. Attention is scaled_dot_product_attention, the fastest that PyTorch has.

With --ranks the step is that of one of so many processes under DistributedDataParallel over gloo,
who meet in the file --store: gradients are views of the buckets, which saves a copy."""
import argparse
import json
import resource
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
for name, default in dict(layers=12, heads=12, embd=768, vocab=50257, seq=256, batch=4, steps=5,
                          threads=1, warmup=2, ranks=1, rank=0).items():
    parser.add_argument("--" + name, type=int, default=default)
parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--static-graph", action="store_true", help="of DistributedDataParallel")
parser.add_argument("--store", default="")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.c_attn, self.attn_proj = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.c_fc, self.mlp_proj = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, args.heads, c // args.heads).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        c = args.embd
        self.wte, self.wpe = nn.Embedding(args.vocab, c), nn.Embedding(args.seq, c)
        self.h = nn.ModuleList(Block(c) for _ in range(args.layers))
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
        return F.cross_entropy(logits.view(-1, args.vocab), targets.view(-1))


model = GPT2()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
loss_of = torch.compile(model) if args.compile else model
if args.ranks > 1:
    torch.distributed.init_process_group("gloo", init_method="file://" + args.store, rank=args.rank,
                                         world_size=args.ranks)
    loss_of = nn.parallel.DistributedDataParallel(loss_of, gradient_as_bucket_view=True,
                                                  static_graph=args.static_graph)
tokens, targets = torch.randint(0, args.vocab, (2, args.batch, args.seq))
step_ms = []
for step in range(args.warmup + args.steps):
    begin = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
        loss = loss_of(tokens, targets)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    step_ms.append((time.perf_counter() - begin) * 1e3)
print(json.dumps(dict(step_ms=step_ms[args.warmup:], loss=loss.item(),
                      peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)))
if args.ranks > 1:
    torch.distributed.destroy_process_group()
