"""One training step of GPT-2 in PyTorch with sharded states, one of --ranks processes that meet
over gloo in the file --store: the peer of bench/sharding/run.py.

    fsdp2   fully_shard of each block and of the root, which are built without memory and get values
            when they are shards; bf16 is MixedPrecisionPolicy, gradients reduced in float32
    zero    DistributedDataParallel (static graph) and ZeroRedundancyOptimizer; bf16 is autocast

AdamW has Lockstep's default settings and is `fused`, the faster of PyTorch's on CPUs."""
import contextlib
import os
import sys

import torch
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "step"))
import torch_gpt2

ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def initialize(model):
    """As GPT2() does, but of the shards."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        for name, param in model.named_parameters():
            if param.dim() > 1:
                param.to_local().normal_(0, 0.02)
            elif name.endswith("bias"):
                param.to_local().zero_()


def fsdp2(args):
    policy = (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
              if args.dtype == "bf16" else MixedPrecisionPolicy())
    mesh = init_device_mesh("cpu", (args.ranks,))
    with torch.device("meta"):
        model = torch_gpt2.GPT2(args)
    for unit in [*model.h, model]:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cpu")
    initialize(model)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    return model, model, optimizer, contextlib.nullcontext


def zero(args):
    model = torch_gpt2.GPT2(args)
    loss_of = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True,
                                                  static_graph=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW,
                                        parameters_as_bucket_view=True, **ADAMW)
    return loss_of, model, optimizer, lambda: torch_gpt2.autocast(args)


STRATEGIES = {"fsdp2": fsdp2, "zero": zero}

if __name__ == "__main__":
    parser = torch_gpt2.options()
    parser.add_argument("--strategy", choices=STRATEGIES, default="fsdp2")
    args = parser.parse_args()
    torch_gpt2.start(args)
    torch_gpt2.train(args, *STRATEGIES[args.strategy](args))
