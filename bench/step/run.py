#!/usr/bin/env python3
"""Times a training step by Lockstep, by PyTorch and by llm.c in turns and prints the ratios.

    make bench-step                                        PYTHON=a python3 with torch (else Lockstep alone)
    bench/step/run.py LOCKSTEP [--models gpt2,char] [--dtypes f32,bf16] [--threads 1,2] [--rounds 2]
        [--python PYTHON [--compile]] [--llmc PATH]      PATH: train_gpt2, built for a model's B, T

A row is a model, a type and a number of threads. Each round runs every program once, one after the
other on the same processors; figures are medians over the steps of all rounds. GFLOP/s counts 6 N
operations per token. Memory is the peak resident size of the process. A ratio is the peer's time by
Lockstep's, mem Lockstep's memory by the peer's; `-`: the peer failed, or has no such type."""
import argparse
import contextlib
import os
import statistics
import sys
import tempfile

import llmc
from programs import (HERE, MODELS, Failed, first_line, metrics_of, n_params, on_processors,
                      result_of, run_together, sample_text, step_ms_of, torch_command, torch_result,
                      train_command)

FIRST_STEPS = 2


def pinned(threads):
    return on_processors(sorted(os.sched_getaffinity(0))[-threads:])


def run_ours(program, model, dtype, threads, steps, text):
    with tempfile.TemporaryDirectory() as folder:
        run_together([pinned(threads) + train_command(program, text, model, dtype, MODELS[model][5],
                                                      1, threads, steps + FIRST_STEPS, folder)],
                     tell=first_line)
        return step_ms_of(metrics_of(folder))[FIRST_STEPS:], result_of(folder)["peak_rss_bytes"][0]


def run_torch(python, model, dtype, threads, steps, compiled):
    script = os.path.join(HERE, "torch_step.py")
    command = torch_command(python, script, model, dtype, MODELS[model][5], threads, steps)
    try:
        printed = run_together([pinned(threads) + command + (["--compile"] if compiled else [])])
    except Failed as failure:
        print(f"torch{' compile' if compiled else ''} failed: {failure}", file=sys.stderr)
        return [], 0
    made = torch_result(printed[0])
    return made["step_ms"], made["peak_rss_bytes"]


def run_llmc(program, model, threads, steps):
    try:
        step_ms, peak_bytes = llmc.run(program, model, threads, steps + FIRST_STEPS,
                                       pinned(threads))
    except Failed as failure:
        print(f"llm.c failed: {failure}", file=sys.stderr)
        return [], 0
    return step_ms[FIRST_STEPS:], peak_bytes


def peers_of(options):
    return [name for name, is_wanted in (("torch", options.python),
                                         ("compile", options.python and options.compile),
                                         ("llm.c", options.llmc)) if is_wanted]


def measure(options, model, dtype, threads):
    engines = {"lockstep": lambda: run_ours(options.program, model, dtype, threads, options.steps,
                                            options.text)}
    if options.python:
        engines["torch"] = lambda: run_torch(options.python, model, dtype, threads, options.steps, False)
        if options.compile:
            engines["compile"] = lambda: run_torch(options.python, model, dtype, threads,
                                                   options.steps, True)
    if options.llmc and dtype == "f32":
        engines["llm.c"] = lambda: run_llmc(options.llmc, model, threads, options.steps)
    times, memory = {name: [] for name in engines}, {}
    for _ in range(options.rounds):
        for name, engine in engines.items():
            step_ms, memory[name] = engine()
            times[name] += step_ms
    return {name: statistics.median(t) for name, t in times.items() if t}, memory


def print_head(peers):
    print("model      type  thr    step ms  tokens/s   GFLOP/s    GiB"
          + "".join(f"  {name + ' ms':>10} {'ratio':>6} {'mem':>6}" for name in peers))


def print_row(model, dtype, threads, ms, memory, peers):
    layers, _, width, vocab, seq, batch = MODELS[model]
    ours = ms["lockstep"]
    rate = 6 * n_params(layers, width, vocab) * batch * seq / ours / 1e6
    cells = [f"{model:10} {dtype:5} {threads}  {ours:9.0f} {batch * seq / ours * 1e3:9.0f} {rate:9.0f}"
             f" {memory['lockstep'] / 2**30:6.2f}"]
    for name in peers:
        cells.append(f"{ms[name]:10.0f} {ms[name] / ours:6.2f} "
                     f"{memory['lockstep'] / memory[name] * 100:5.0f}%" if name in ms
                     else f"{'-':>10} {'-':>6} {'-':>6}")
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
    parser.add_argument("--llmc", default="", help="llm.c's train_gpt2: float32, one B and T")
    parser.add_argument("--text", default="")
    options = parser.parse_args()
    # --text: what is trained on does not change the time, but losses
    with contextlib.nullcontext(options.text) if options.text else sample_text() as options.text:
        peers = peers_of(options)
        print_head(peers)
        for model in options.models.split(","):
            for dtype in options.dtypes.split(","):
                for threads in map(int, options.threads.split(",")):
                    print_row(model, dtype, threads, *measure(options, model, dtype, threads),
                              peers)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(str(failure))
