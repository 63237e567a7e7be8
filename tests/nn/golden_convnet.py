"""Makes the golden numbers of test_convnet.c: a tiny residual network and an mlp in PyTorch.

Both are put together from torch.nn.functional in float64, from weights that both sides compute from
a formula and round to float32. Run: python3 golden_convnet.py   (needs torch; made with 2.13.0).
Prints rows of C.
"""

import math

import torch
import torch.nn.functional as F

B, H, W, C_IN, C, L, CLASSES = 5, 6, 5, 2, 3, 2, 4
MLP_C, MLP_L = 7, 2
EPSILON, MOMENTUM = 1e-5, 0.1


def norm_shapes(name, n):
    return [(f"{name}.{part}", (n,)) for part in ("weight", "bias", "running_mean", "running_var")]


def conv_shapes(prefix, conv, norm, n_in, n_out, kernel):
    return [(f"{prefix}{conv}.weight", (n_out, kernel, kernel, n_in))] + norm_shapes(prefix + norm, n_out)


def convnet_shapes():
    shapes = conv_shapes("", "conv1", "bn1", C_IN, C, 3)
    for stage in range(3):
        for block in range(L):
            n = C << stage
            shrinks = block == 0 and stage > 0
            n_in = n // 2 if shrinks else n
            prefix = f"layer{stage + 1}.{block}."
            shapes += conv_shapes(prefix, "conv1", "bn1", n_in, n, 3)
            shapes += conv_shapes(prefix, "conv2", "bn2", n, n, 3)
            if shrinks:
                shapes += conv_shapes(prefix, "downsample.0", "downsample.1", n_in, n, 1)
    return shapes + [("fc.weight", (CLASSES, 4 * C)), ("fc.bias", (CLASSES,))]


def mlp_shapes():
    shapes, n_in = [], H * W * C_IN
    for layer in range(MLP_L):
        shapes += [(f"layers.{layer}.weight", (MLP_C, n_in)), (f"layers.{layer}.bias", (MLP_C,))]
        n_in = MLP_C
    return shapes + [("head.weight", (CLASSES, n_in)), ("head.bias", (CLASSES,))]


def make_params(shapes):
    """w[i] = 0.3 sin(i + 1 + 1000 p), plus 1 for weights of norms and variances, as float32."""
    params = {}
    for p, (name, shape) in enumerate(shapes):
        one = 1.0 if ("bn" in name or "downsample.1" in name) and name.endswith("weight") else 0.0
        one = 1.0 if name.endswith("running_var") else one
        values = [one + 0.3 * math.sin(i + 1 + 1000 * p) for i in range(math.prod(shape))]
        flat = torch.tensor(values, dtype=torch.float64).to(torch.float32).to(torch.float64)
        params[name] = flat.reshape(shape)
        if "running" not in name:
            params[name].requires_grad_()
    return params


def make_batch():
    n = B * H * W * C_IN
    pixels = [0.5 + 0.5 * math.sin(0.37 * i * (1 + i % 7)) for i in range(n)]
    images = torch.tensor(pixels, dtype=torch.float64).to(torch.float32).to(torch.float64)
    targets = torch.tensor([(3 * b + 1) % CLASSES for b in range(B)])
    targets[3] = -1
    return images.reshape(B, H, W, C_IN), targets


def conv_norm(x, p, conv, norm, stride, training):
    weight = p[conv + ".weight"].permute(0, 3, 1, 2)
    y = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
    # in place for running statistics, as BatchNorm2d has it
    return F.batch_norm(y, p[norm + ".running_mean"], p[norm + ".running_var"], p[norm + ".weight"],
                        p[norm + ".bias"], training=training, momentum=MOMENTUM, eps=EPSILON)


def convnet(p, images, training):
    x = F.relu(conv_norm(images.permute(0, 3, 1, 2), p, "conv1", "bn1", 1, training))
    for stage in range(3):
        for block in range(L):
            stride = 2 if block == 0 and stage > 0 else 1
            prefix = f"layer{stage + 1}.{block}."
            inner = F.relu(conv_norm(x, p, prefix + "conv1", prefix + "bn1", stride, training))
            branch = conv_norm(inner, p, prefix + "conv2", prefix + "bn2", 1, training)
            if stride == 2:
                x = conv_norm(x, p, prefix + "downsample.0", prefix + "downsample.1", 2, training)
            x = F.relu(branch + x)
    return F.linear(x.mean((2, 3)), p["fc.weight"], p["fc.bias"])


def mlp(p, images, training):
    x = images.reshape(B, -1)
    for layer in range(MLP_L):
        x = F.relu(F.linear(x, p[f"layers.{layer}.weight"], p[f"layers.{layer}.bias"]))
    return F.linear(x, p["head.weight"], p["head.bias"])


def loss_of(logits, targets):
    return F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")


def waves(values):
    flat = values.detach().reshape(-1)
    return (flat @ torch.sin(torch.arange(1, flat.numel() + 1, dtype=torch.float64))).item()


def train_ten_steps(name, model, shapes, images, targets):
    """AdamW as our optimizer has it: one weight decay for matrices, none for vectors."""
    p = make_params(shapes)
    trained = {key: value for key, value in p.items() if value.requires_grad}
    groups = [{"params": [v for v in trained.values() if v.dim() > 1], "weight_decay": 0.1},
              {"params": [v for v in trained.values() if v.dim() == 1], "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    losses = []
    for _ in range(10):
        loss = loss_of(model(p, images, True), targets) / 4
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    print(f"static const double {name}_losses[] = {{" + ", ".join(f"{x:.9f}" for x in losses) + "};")
    final = loss_of(model(p, images, False), targets).item()
    print(f"static const double {name}_loss_after = {final:.9f};")


def show(name, model, shapes):
    p = make_params(shapes)
    images, targets = make_batch()
    with torch.no_grad():
        inference = model(p, images, False)
    loss = loss_of(model(p, images, True), targets)
    loss.backward()
    print(f"static const double {name}_loss = {loss.item():.12f};")
    print(f"static const double {name}_inference_loss = {loss_of(inference, targets).item():.12f};")
    print(f"static const double {name}_logits[] = {{")
    print("    " + ", ".join(f"{x:.9f}" for x in inference.reshape(-1).tolist()) + "};")
    print(f"static const golden_row {name}_golden[] = {{")
    for key, value in p.items():
        if value.requires_grad:
            print(f'    {{"{key}", {value.grad.norm().item():.9f}, {waves(value.grad):.9f}}},')
        else:
            print(f'    {{"{key}", {value.norm().item():.9f}, {waves(value):.9f}}},')
    print("};")
    train_ten_steps(name, model, shapes, images, targets)


show("convnet", convnet, convnet_shapes())
show("mlp", mlp, mlp_shapes())
