"""The programs that are compared, and the memory of their states by docs/sharding.md."""
import collections
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "step"))
from programs import MODELS, n_params

STATES = ("params", "grads", "optimizer")
# options: of lockstep train, or the --strategy of torch_sharded.py. sharded: the states that are.
# group: workers of a shard group, 0: all. goal: tokens/s against our ddp.
Program = collections.namedtuple("Program", "options sharded group goal")
OURS = {
    "ddp": Program(["--strategy", "ddp"], (), 0, None),
    "zero1": Program(["--strategy", "zero1"], ("params", "optimizer"), 0, 1.00),
    "zero2": Program(["--strategy", "zero2"], STATES, 0, 0.98),
    "zero3": Program(["--strategy", "zero3"], STATES, 0, 0.97),
    "zero3/private": Program(["--strategy", "zero3", "--replicas", "private", "--prefetch", "1"],
                             STATES, 0, 0.85),
    "hybrid": Program(["--strategy", "hybrid", "--shard-group", "2"], STATES, 2, 0.95),
    "hybrid/private": Program(["--strategy", "hybrid", "--shard-group", "2", "--replicas",
                               "private"], STATES, 2, 0.95),
}
TORCH = {
    "torch/fsdp2": Program("fsdp2", STATES, 0, None),
    "torch/zero": Program("zero", ("optimizer",), 0, None),
}
PROGRAMS = {**OURS, **TORCH}


def makes_sense(name, workers):
    """A shard group of one worker, or of all, is another strategy."""
    return PROGRAMS[name].group == 0 or 1 < PROGRAMS[name].group < workers


def bytes_per_param(name, dtype):
    if dtype == "f32" or name in TORCH:  # autocast and FSDP2 keep float32 parameters
        return {"params": 4, "grads": 4, "optimizer": 8}
    return {"params": 2, "grads": 4, "optimizer": 8 + 2}  # moments, and lower halves of the parameters


def state_bytes(name, dtype, workers, params):
    """Own bytes of a worker, by kind, for so many parameters."""
    program = PROGRAMS[name]
    group = program.group or workers
    return {kind: params * each / (group if kind in program.sharded else 1)
            for kind, each in bytes_per_param(name, dtype).items()}


def estimated_bytes(name, model, dtype, workers, micro_batch):
    """Memory of all workers together, rather too much: whether the machine has room. Besides states
    there are libraries, activations, logits and their gradients, and the embedding on its way as
    parameter and gradient; PyTorch, which has more of all these, was measured."""
    layers, _, width, vocab, seq, _ = MODELS[model]
    states = state_bytes(name, dtype, workers, n_params(layers, width, vocab))
    per_token = 80 * layers * width + 12 * vocab
    besides = 2**29 + 12 * vocab * width + micro_batch * seq * per_token
    return workers * (sum(states.values()) + besides)
