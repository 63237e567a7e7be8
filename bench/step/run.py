#!/usr/bin/env python3
"""Times a training step by Lockstep and by PyTorch in turns and prints the ratios.

    make bench-step                                        PYTHON=a python3 with torch (else Lockstep alone)
    bench/step/run.py LOCKSTEP [--models gpt2,char] [--dtypes f32,bf16] [--threads 1,2] [--rounds 2]

A row is a model, a type and a number of threads. Each round runs every program once, one after the
other on the same processors; figures are medians over the steps of all rounds. GFLOP/s counts 6 N
operations per token. Memory is the peak resident size of the process."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = {  # layers, heads, width, vocabulary, T, B
    "gpt2": (12, 12, 768, 50257, 256, 4),
    "gpt2-1024": (12, 12, 768, 50257, 1024, 1),
    "char": (6, 6, 384, 256, 256, 8),
    "tiny": (2, 2, 64, 256, 64, 4),
}


def n_params(layers, width, vocab):
    return layers * 12 * width * width + vocab * width


def pinned(threads):
    cpus = sorted(os.sched_getaffinity(0))[-threads:]
    return ["taskset", "-c", ",".join(map(str, cpus))]


def run_ours(program, model, dtype, threads, steps, text):
    layers, heads, width, vocab, seq, batch = MODELS[model]
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result.json")
        subprocess.run(pinned(threads) + [
            program, "train", "--data", text, "--model", "gpt2", "--n-layer", str(layers),
            "--n-head", str(heads), "--n-embd", str(width), "--vocab-size", str(vocab),
            "--seq-len", str(seq), "--batch-size", str(batch), "--micro-batch-size", str(batch),
            "--steps", str(steps + 2), "--dtype", dtype, "--threads", str(threads), "--workers", "1",
            "--val-fraction", "0", "--out", folder + "/run", "--json", result],
            check=True, stdout=subprocess.DEVNULL)
        made = json.load(open(result))
        steps_ms = [json.loads(line) for line in open(folder + "/run/metrics.jsonl")]
    step_ms = [row["step_ms"] for row in steps_ms if "step_ms" in row][2:]
    return step_ms, made["peak_rss_bytes"][0]


def run_torch(python, model, dtype, threads, steps, compiled):
    layers, heads, width, vocab, seq, batch = MODELS[model]
    out = subprocess.run(pinned(threads) + [
        python, os.path.join(HERE, "torch_step.py"), f"--layers={layers}", f"--heads={heads}",
        f"--embd={width}", f"--vocab={vocab}", f"--seq={seq}", f"--batch={batch}",
        f"--threads={threads}", f"--dtype={dtype}", f"--steps={steps}"] +
        (["--compile"] if compiled else []), capture_output=True, text=True)
    if out.returncode:
        print(f"torch{' compile' if compiled else ''} failed: {out.stderr.strip().splitlines()[-1]}",
              file=sys.stderr)
        return [], 0
    made = json.loads(out.stdout.strip().splitlines()[-1])
    return made["step_ms"], made["peak_rss_bytes"]


def measure(options, model, dtype, threads):
    engines = {"lockstep": lambda: run_ours(options.program, model, dtype, threads, options.steps,
                                            options.text)}
    if options.python:
        engines["torch"] = lambda: run_torch(options.python, model, dtype, threads, options.steps, False)
        if options.compile:
            engines["compile"] = lambda: run_torch(options.python, model, dtype, threads,
                                                   options.steps, True)
    times, memory = {name: [] for name in engines}, {}
    for _ in range(options.rounds):
        for name, engine in engines.items():
            step_ms, memory[name] = engine()
            times[name] += step_ms
    return {name: statistics.median(t) for name, t in times.items() if t}, memory


def print_row(model, dtype, threads, ms, memory):
    layers, _, width, vocab, seq, batch = MODELS[model]
    ours = ms["lockstep"]
    rate = 6 * n_params(layers, width, vocab) * batch * seq / ours / 1e6
    cells = [f"{model:10} {dtype:5} {threads}  {ours:9.0f} {batch * seq / ours * 1e3:9.0f} {rate:9.0f}"
             f" {memory['lockstep'] / 2**30:6.2f}"]
    for name in ("torch", "compile"):
        if name in ms:
            cells.append(f"{ms[name]:9.0f} {ms[name] / ours:6.2f} "
                         f"{memory['lockstep'] / memory[name] * 100:5.0f}%")
    print("  ".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--models", default="gpt2,gpt2-1024,char")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--python", default=os.environ.get("PYTHON", ""))
    parser.add_argument("--compile", action="store_true", help="also torch.compile")
    parser.add_argument("--text", default="")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        if not options.text:  # what the tokens are does not change the time
            text.write("".join(chr(32 + (i * i * 7 + i * 13) % 90) for i in range(400000)))
            text.flush()
            options.text = text.name
        print("model      type  thr    step ms  tokens/s   GFLOP/s    GiB    torch ms  ratio  mem"
              + ("   compile ms  ratio  mem" if options.compile else ""))
        for model in options.models.split(","):
            for dtype in options.dtypes.split(","):
                for threads in map(int, options.threads.split(",")):
                    print_row(model, dtype, threads, *measure(options, model, dtype, threads))


if __name__ == "__main__":
    main()
