"""A training step of GPT-2 by llm.c's program for processors (train_gpt2.c), in float32: a peer of
bench/step/run.py. Its source is not part of this repository; B and T are fixed in its main() and
are changed there before it is built (bench/README.md).

The program wants a checkpoint and two files of tokens in its folder. They are made here, with
random values: a model of the sizes that the other engines train, but the vocabulary is padded to a
multiple of 128, as llm.c's users do. The program times each step itself, and is ended after enough.

It never says which B and T it was built with, but how many activations it has. A program that has
others than it should is refused; for none of the models of programs.py another B up to 512 and T up
to 1024 have as many."""
import array
import math
import os
import random
import re
import subprocess
import tempfile

from programs import MODELS, Failed

MODEL_MAGIC, MODEL_VERSION = 20240326, 3  # 3: float32
TOKENS_MAGIC, TOKENS_VERSION = 20240520, 1
TOKENS = "dev/data/tinyshakespeare/tiny_shakespeare_%s.bin"
N_TOKENS = 1 << 18
N_RANDOM = 999983  # drawn once and repeated; a prime, so that rows of a weight differ
MAX_STEPS = 20  # then it generates text, and wants a tokenizer
ACTIVATIONS = "num_activations: "
STEP = re.compile(r"step \d+: train loss (\S+) \(took (\S+) ms\)")


def n_padded(vocab):
    return (vocab + 127) // 128 * 128


def n_activations(model):
    layers, heads, width, vocab, seq, batch = MODELS[model]
    per_layer = 18 * width + 4 + 2 * heads * seq  # 2: scores before and after the softmax
    return batch * seq * (layers * per_layer + 2 * width + 2 * n_padded(vocab) + 3)


# ---- files ----

def write_header(file, *values):
    array.array("i", [*values] + [0] * (256 - len(values))).tofile(file)


def write_repeated(file, values, n):
    whole, rest = divmod(n, len(values))
    for _ in range(whole):
        values.tofile(file)
    values[:rest].tofile(file)


def write_model(path, model):
    layers, heads, c, vocab, seq, _ = MODELS[model]
    weight = array.array("f", (random.gauss(0, 0.02) for _ in range(N_RANDOM)))
    gain, bias = array.array("f", [1] * c), array.array("f", [0] * c)
    layer = [(gain, c), (bias, c), (weight, 3 * c * c), (bias, 3 * c), (weight, c * c), (bias, c),
             (gain, c), (bias, c), (weight, 4 * c * c), (bias, 4 * c), (weight, 4 * c * c),
             (bias, c)]  # each tensor is stored for all layers together
    with open(path, "wb") as file:
        write_header(file, MODEL_MAGIC, MODEL_VERSION, seq, vocab, layers, heads, c,
                     n_padded(vocab))
        write_repeated(file, weight, (n_padded(vocab) + seq) * c)
        for values, n in layer:
            write_repeated(file, values, layers * n)
        gain.tofile(file)
        bias.tofile(file)


def write_tokens(path, vocab):
    with open(path, "wb") as file:
        write_header(file, TOKENS_MAGIC, TOKENS_VERSION, N_TOKENS)
        array.array("H", (random.randrange(vocab) for _ in range(N_TOKENS))).tofile(file)


def write_files(folder, model):
    write_model(os.path.join(folder, "gpt2_124M.bin"), model)
    os.makedirs(os.path.dirname(os.path.join(folder, TOKENS)))
    for part in ("train", "val"):
        write_tokens(os.path.join(folder, TOKENS % part), MODELS[model][3])


# ---- running ----

def step_ms_of(printed, model, n_steps):
    """Reads lines until n_steps steps were made."""
    step_ms, line, is_checked = [], "", False
    for line in printed:
        if line.startswith(ACTIVATIONS):
            found, wanted = int(line[len(ACTIVATIONS):]), n_activations(model)
            if found != wanted:
                raise Failed(f"built for another B or T: {found} activations instead of {wanted}"
                             f" (B={MODELS[model][5]}, T={MODELS[model][4]})")
            is_checked = True
        elif step := STEP.match(line):
            if not is_checked:
                raise Failed("does not say how many activations it has")
            if not math.isfinite(float(step[1])):
                raise Failed("the loss is not finite")
            step_ms.append(float(step[2]))
            if len(step_ms) == n_steps:
                return step_ms
    raise Failed(line.strip() or "printed nothing")


def peak_rss_bytes(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise Failed("ended too early")


def run(program, model, threads, n_steps, pinned):
    """Times of the first n_steps steps, at most MAX_STEPS, and the peak of memory; or Failed."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(folder, model)
        # stdbuf: to a pipe it would print only when its buffer is full
        process = subprocess.Popen(pinned + ["stdbuf", "-oL", os.path.abspath(program)], cwd=folder,
                                   env=dict(os.environ, OMP_NUM_THREADS=str(threads)), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            step_ms = step_ms_of(process.stdout, model, min(n_steps, MAX_STEPS))
            return step_ms, peak_rss_bytes(process.pid)
        finally:
            process.kill()
            process.communicate()
