"""Makes the golden numbers of test_gpt2.c: logits, loss, gradients and ten losses of training of a
tiny GPT-2 in PyTorch.

The model is written out by hand in float64, from weights that both sides compute from a formula and
round to float32. With `transformers` installed, its GPT2LMHeadModel must give the same numbers.
Run: python3 golden_gpt2.py   (needs torch; made with 2.13.0). Prints rows of C.
"""

import math

import torch

V, T, C, H, L, B = 13, 6, 8, 2, 2, 2
EPSILON = 1e-5

BLOCK = [
    ("ln_1.weight", (C,)), ("ln_1.bias", (C,)),
    ("attn.c_attn.weight", (C, 3 * C)), ("attn.c_attn.bias", (3 * C,)),
    ("attn.c_proj.weight", (C, C)), ("attn.c_proj.bias", (C,)),
    ("ln_2.weight", (C,)), ("ln_2.bias", (C,)),
    ("mlp.c_fc.weight", (C, 4 * C)), ("mlp.c_fc.bias", (4 * C,)),
    ("mlp.c_proj.weight", (4 * C, C)), ("mlp.c_proj.bias", (C,)),
]
SHAPES = [("wte.weight", (V, C)), ("wpe.weight", (T, C))]
SHAPES += [(f"h.{layer}.{name}", shape) for layer in range(L) for name, shape in BLOCK]
SHAPES += [("ln_f.weight", (C,)), ("ln_f.bias", (C,))]


def make_params():
    """w[i] = 0.3 sin(i + 1 + 1000 p), plus 1 for norm weights, rounded to float32."""
    params = {}
    for p, (name, shape) in enumerate(SHAPES):
        one = 1.0 if ".ln_" in "." + name and name.endswith("weight") else 0.0
        values = [one + 0.3 * math.sin(i + 1 + 1000 * p) for i in range(math.prod(shape))]
        flat = torch.tensor(values, dtype=torch.float64).to(torch.float32).to(torch.float64)
        params[name] = flat.reshape(shape).requires_grad_()
    return params


def make_batch():
    ids = [[(7 * b + 5 * t + 3) % V for t in range(T)] for b in range(B)]
    targets = [[(3 * b + 2 * t + 1) % V for t in range(T)] for b in range(B)]
    targets[1][2] = -1
    return torch.tensor(ids), torch.tensor(targets)


def norm(x, p, name):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + EPSILON) * p[name + ".weight"] + p[name + ".bias"]


def linear(x, p, name):
    return x @ p[name + ".weight"] + p[name + ".bias"]


def attention(x, p, name):
    q, k, v = linear(x, p, name + ".c_attn").split(C, -1)
    q, k, v = (y.reshape(B, T, H, C // H).transpose(1, 2) for y in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(C // H)
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)
    return linear(mixed, p, name + ".c_proj")


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, V), targets.reshape(-1), ignore_index=-1, reduction="sum")


def logits_of(p, ids):
    x = p["wte.weight"][ids] + p["wpe.weight"]
    for layer in range(L):
        h = f"h.{layer}"
        x = x + attention(norm(x, p, h + ".ln_1"), p, h + ".attn")
        wide = gelu(linear(norm(x, p, h + ".ln_2"), p, h + ".mlp.c_fc"))
        x = x + linear(wide, p, h + ".mlp.c_proj")
    return norm(x, p, "ln_f") @ p["wte.weight"].T


def check_transformers(p, ids, targets, logits, loss):
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        print("/* not compared with transformers: not installed */")
        return
    config = GPT2Config(vocab_size=V, n_positions=T, n_embd=C, n_layer=L, n_head=H, resid_pdrop=0,
                        embd_pdrop=0, attn_pdrop=0, layer_norm_epsilon=EPSILON)
    model = GPT2LMHeadModel(config).to(torch.float64).train()
    state = {"transformer." + name: value.detach() for name, value in p.items()}
    state["lm_head.weight"] = state["transformer.wte.weight"]
    model.load_state_dict(state)
    theirs = model(ids).logits
    other = loss_of(theirs, targets)
    other.backward()
    assert torch.allclose(theirs, logits, rtol=1e-10, atol=1e-10)
    assert abs(other.item() - loss.item()) < 1e-10
    for name, value in model.named_parameters():
        mine = p[name.removeprefix("transformer.")].grad
        assert torch.allclose(value.grad, mine, rtol=1e-9, atol=1e-12), name
    print("/* equal to GPT2LMHeadModel of transformers */")


def train(ids, targets, dtype):
    """Ten losses a target of AdamW with clipping, norms and biases without decay. Weights and
    activations are of dtype, what the optimizer keeps is float64."""
    p = make_params()
    plain = [value for value in p.values() if value.dim() == 1]
    others = [value for value in p.values() if value.dim() != 1]
    optimizer = torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}],
        lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        rounded = {name: value.to(dtype) for name, value in p.items()}
        loss = loss_of(logits_of(rounded, ids).to(torch.float64), targets) / 11
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def print_list(name, values):
    print(f"static const double {name}[] = {{{', '.join(f'{v:.9f}' for v in values)}}};")


def main():
    p = make_params()
    ids, targets = make_batch()
    logits = logits_of(p, ids)
    loss = loss_of(logits, targets)
    loss.backward()
    check_transformers(p, ids, targets, logits, loss)
    print(f"static const double golden_loss = {loss.item():.12f};")
    print_list("golden_logits", logits[1, -1].tolist())
    for name, value in p.items():
        grad = value.grad.reshape(-1)
        waves = torch.sin(torch.arange(1, grad.numel() + 1, dtype=torch.float64))
        print(f'{{"{name}", {grad.norm().item():.9f}, {(grad @ waves).item():.9f}}},')
    losses = train(ids, targets, torch.float64)
    print_list("golden_training", losses)
    rounded = train(ids, targets, torch.bfloat16)
    away = max(abs(a - b) for a, b in zip(losses, rounded))
    print(f"/* the same in bfloat16 is up to {away:.3f} away */")


main()
