"""Makes the golden numbers of test_llama.c: logits, loss, gradients and ten losses of training of a
tiny Llama in PyTorch, with the output layer tied to the embedding and untied.

The model is written out by hand in float64, from weights that both sides compute from a formula and
round to float32. With `transformers` installed, its LlamaForCausalLM must give the same numbers up
to the float32 of its norms and angles.
Run: python3 golden_llama.py   (needs torch; made with 2.13.0). Prints rows of C.
"""

import math

import torch

V, T, C, H, G, I, L, B = 13, 6, 16, 4, 2, 20, 2, 2
D = C // H
EPSILON, THETA = 1e-5, 100.0

BLOCK = [
    ("input_layernorm.weight", (C,)),
    ("self_attn.q_proj.weight", (C, C)), ("self_attn.k_proj.weight", (G * D, C)),
    ("self_attn.v_proj.weight", (G * D, C)), ("self_attn.o_proj.weight", (C, C)),
    ("post_attention_layernorm.weight", (C,)),
    ("mlp.gate_proj.weight", (I, C)), ("mlp.up_proj.weight", (I, C)),
    ("mlp.down_proj.weight", (C, I)),
]
SHAPES = [("model.embed_tokens.weight", (V, C))]
SHAPES += [(f"model.layers.{layer}.{name}", shape) for layer in range(L) for name, shape in BLOCK]
SHAPES += [("model.norm.weight", (C,)), ("lm_head.weight", (V, C))]


def make_params(tied):
    """w[i] = 0.3 sin(i + 1 + 1000 p), plus 1 for norm weights, rounded to float32."""
    params = {}
    for p, (name, shape) in enumerate(SHAPES):
        if tied and name == "lm_head.weight":
            continue
        one = 1.0 if "norm" in name else 0.0
        values = [one + 0.3 * math.sin(i + 1 + 1000 * p) for i in range(math.prod(shape))]
        flat = torch.tensor(values, dtype=torch.float64).to(torch.float32).to(torch.float64)
        params[name] = flat.reshape(shape).requires_grad_()
    return params


def make_batch():
    ids = [[(7 * b + 5 * t + 3) % V for t in range(T)] for b in range(B)]
    targets = [[(3 * b + 2 * t + 1) % V for t in range(T)] for b in range(B)]
    targets[1][2] = -1
    return torch.tensor(ids), torch.tensor(targets)


def norm(x, weight):
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + EPSILON) * weight


def turned(x):
    """Rotary positions of (B, heads, T, D): elements i and i + D/2 are a pair."""
    frequency = THETA ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = torch.arange(T, dtype=torch.float64)[:, None] * frequency
    a, b = x[..., : D // 2], x[..., D // 2 :]
    cosine, sine = angle.cos(), angle.sin()
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def attention(x, p, name):
    q, k, v = (x @ p[f"{name}.{which}_proj.weight"].T for which in "qkv")
    q = turned(q.reshape(B, T, H, D).transpose(1, 2))
    k = turned(k.reshape(B, T, G, D).transpose(1, 2)).repeat_interleave(H // G, 1)
    v = v.reshape(B, T, G, D).transpose(1, 2).repeat_interleave(H // G, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)
    return mixed @ p[f"{name}.o_proj.weight"].T


def feed_forward(x, p, name):
    gate, up = (x @ p[f"{name}.{which}_proj.weight"].T for which in ("gate", "up"))
    return (gate / (1 + torch.exp(-gate)) * up) @ p[f"{name}.down_proj.weight"].T


def logits_of(p, ids):
    table = p["model.embed_tokens.weight"]
    x = table[ids]
    for layer in range(L):
        h = f"model.layers.{layer}"
        x = x + attention(norm(x, p[h + ".input_layernorm.weight"]), p, h + ".self_attn")
        x = x + feed_forward(norm(x, p[h + ".post_attention_layernorm.weight"]), p, h + ".mlp")
    return norm(x, p["model.norm.weight"]) @ p.get("lm_head.weight", table).T


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, V), targets.reshape(-1), ignore_index=-1, reduction="sum")


def check_transformers(p, ids, targets, logits, loss):
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        print("/* not compared with transformers: not installed */")
        return
    tied = "lm_head.weight" not in p
    config = LlamaConfig.from_dict(dict(
        vocab_size=V, hidden_size=C, intermediate_size=I, num_hidden_layers=L,
        num_attention_heads=H, num_key_value_heads=G, max_position_embeddings=T,
        rms_norm_eps=EPSILON, rope_theta=THETA, tie_word_embeddings=tied))
    model = LlamaForCausalLM(config).to(torch.float64).train()
    state = {name: value.detach() for name, value in p.items()}
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    theirs = model(ids).logits
    other = loss_of(theirs, targets)
    other.backward()
    assert torch.allclose(theirs, logits, rtol=1e-5, atol=1e-5)
    assert abs(other.item() - loss.item()) < 1e-5
    for name, value in model.named_parameters():
        assert torch.allclose(value.grad, p[name].grad, rtol=1e-4, atol=1e-5), name
    print(f"/* equal to LlamaForCausalLM of transformers, {'tied' if tied else 'untied'} */")


def train(p, ids, targets):
    """Ten losses a target of AdamW with clipping, norms without decay."""
    norms = [value for name, value in p.items() if "norm" in name]
    others = [value for name, value in p.items() if "norm" not in name]
    optimizer = torch.optim.AdamW(
        [{"params": others, "weight_decay": 0.1}, {"params": norms, "weight_decay": 0.0}],
        lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = loss_of(logits_of(p, ids), targets) / 11
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def print_list(name, values):
    print(f"static const double {name}[] = {{{', '.join(f'{v:.9f}' for v in values)}}};")


def main():
    ids, targets = make_batch()
    rows = {}
    for kind in ("tied", "untied"):
        p = make_params(kind == "tied")
        logits = logits_of(p, ids)
        loss = loss_of(logits, targets)
        loss.backward()
        check_transformers(p, ids, targets, logits, loss)
        print(f"static const double {kind}_loss = {loss.item():.12f};")
        print_list(f"{kind}_logits", logits[1, -1].tolist())
        for name, value in p.items():
            grad = value.grad.reshape(-1)
            waves = torch.sin(torch.arange(1, grad.numel() + 1, dtype=torch.float64))
            rows.setdefault(name, {})[kind] = (grad.norm().item(), (grad @ waves).item())
        print_list(f"{kind}_training", train(p, ids, targets))
    for name, row in rows.items():
        numbers = row.get("tied", (0.0, 0.0)) + row["untied"]
        print(f'{{"{name}", {{{{{numbers[0]:.9f}, {numbers[1]:.9f}}}, '
              f"{{{numbers[2]:.9f}, {numbers[3]:.9f}}}}}}},")


main()
