#!/usr/bin/env python3
"""What training with two workers loses to communication, by Lockstep and by PyTorch's DDP in turns.

    make bench-ddp                                         PYTHON=a python3 with torch (else Lockstep alone)
    bench/ddp/run.py LOCKSTEP [--models gpt2,char] [--dtypes f32,bf16] [--rounds 2] [--steps 4]

Programs, each process with one thread on a processor of its own, the same model and micro-batch:

    one    one worker, the other processor idle
    apart  two processes started together that know nothing of each other
    ddp    two workers: the same work as apart, and one model

and the same for PyTorch: torch/apart, torch/ddp and torch/static, which is ddp with a static graph;
the faster of these two counts. Each round runs every program once; a figure is the median over the
steps of all rounds without the first two (set-up) and the last (the other process may have ended),
so loading does not count.

Memory of a process: `RSS`, resident size at its peak, the largest of any; `PSS`, proportional size,
in which a page that is shared, as our gradients are and the pages of libraries, counts once: the
sum over processes by their number, the largest that was seen from the last step on, which takes no
part in times (step/memory.py; `-`: steps were too short to look)."""
import argparse
import collections
import os
import statistics
import sys
import tempfile

STEP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "step")
sys.path.insert(0, STEP)
from memory import largest_each, watch_pss
from programs import (MODELS, Failed, first_line, metrics_of, on_share, result_of, run_together,
                      sample_text, step_ms_of, torch_command, torch_env, torch_result,
                      train_command)

WORKERS, FIRST_STEPS, LAST_STEPS = 2, 2, 1
GOALS = {"apart": 0.97, "f32": 1.4, "bf16": 1.6, "memory": 0.70}
# step_ms: of each process, those measured. rss_bytes, pss_bytes: of a process.
Run = collections.namedtuple("Run", "step_ms rss_bytes pss_bytes")


def measured(step_ms):
    return step_ms[FIRST_STEPS:len(step_ms) - LAST_STEPS]


def n_steps(options):
    return options.steps + FIRST_STEPS + LAST_STEPS


def watch_last_steps(options, metrics, found):
    return watch_pss(metrics, n_steps(options) - LAST_STEPS, found)


# ---- Lockstep ----

def run_ours(options, model, dtype, processes, workers):
    with tempfile.TemporaryDirectory() as top:
        folders = [os.path.join(top, str(i)) for i in range(processes)]
        for folder in folders:
            os.mkdir(folder)
        metrics, pss = [metrics_of(folder) for folder in folders], []
        run_together([(on_share(i, WORKERS) if workers == 1 else []) +
                      train_command(options.program, options.text, model, dtype, MODELS[model][5],
                                    workers, 1, n_steps(options), folder)
                      for i, folder in enumerate(folders)], tell=first_line,
                     watch=watch_last_steps(options, metrics, pss))
        rss = [n_bytes for folder in folders for n_bytes in result_of(folder)["peak_rss_bytes"]]
        return Run([measured(step_ms_of(path)) for path in metrics], max(rss),
                   largest_each(pss, len(rss)))


# ---- PyTorch ----

def run_torch(options, model, dtype, ranks, static):
    with tempfile.TemporaryDirectory() as top:
        metrics, pss = [f"{top}/metrics{i}" for i in range(WORKERS)], []
        more = ["--warmup=0", f"--ranks={ranks}", f"--store={top}/store"]
        commands = [on_share(i, WORKERS) + torch_command(
            options.python, os.path.join(STEP, "torch_step.py"), model, dtype, MODELS[model][5], 1,
            n_steps(options), f"--rank={i}", f"--metrics={metrics[i]}", *more,
            *(["--static-graph"] if static else [])) for i in range(WORKERS)]
        try:
            printed = run_together(commands, torch_env(),
                                   watch=watch_last_steps(options, metrics, pss))
        except Failed as failure:
            print(f"torch failed: {failure}", file=sys.stderr)
            return None
    found = [torch_result(text) for text in printed]
    return Run([measured(f["step_ms"]) for f in found], max(f["peak_rss_bytes"] for f in found),
               largest_each(pss, WORKERS))


# ---- rounds ----

def engines_of(options, model, dtype):
    engines = {"one": lambda: run_ours(options, model, dtype, 1, 1),
               "apart": lambda: run_ours(options, model, dtype, WORKERS, 1),
               "ddp": lambda: run_ours(options, model, dtype, 1, WORKERS)}
    if options.python:
        engines["torch/apart"] = lambda: run_torch(options, model, dtype, 1, False)
        engines["torch/ddp"] = lambda: run_torch(options, model, dtype, WORKERS, False)
        engines["torch/static"] = lambda: run_torch(options, model, dtype, WORKERS, True)
    return engines


def rate(name, runs, tokens):
    """Tokens/s of all workers: the steps of `ddp` are the workers' common ones."""
    processes = [sum(of_rounds, []) for of_rounds in zip(*(run.step_ms for run in runs))]
    rates = [tokens * 1e3 / statistics.median(step_ms) for step_ms in processes]
    return rates[0] * WORKERS if name == "ddp" else sum(rates)


def memory_of(runs):
    return {"RSS": max(run.rss_bytes for run in runs),
            "PSS": max((run.pss_bytes for run in runs if run.pss_bytes), default=None)}


def measure(options, model, dtype):
    """Tokens/s and memory of a process, by program."""
    found = {}
    for _ in range(options.rounds):
        for name, engine in engines_of(options, model, dtype).items():
            run = engine()
            if run:
                found.setdefault(name, []).append(run)
    tokens = MODELS[model][4] * MODELS[model][5]
    return ({name: rate(name, runs, tokens) for name, runs in found.items()},
            {name: memory_of(runs) for name, runs in found.items()})


def fastest_torch(rates):
    names = [name for name in ("torch/ddp", "torch/static") if name in rates]
    return max(names, key=rates.get) if names else None


# ---- the report ----

def gib(n_bytes):
    return f"{n_bytes / 2**30:8.2f}" if n_bytes else f"{'-':>8}"


def print_programs(model, dtype, rates, memory):
    for name in rates:
        print(f"{model:6} {dtype:5} {name:13} {rates[name]:9.0f} {gib(memory[name]['RSS'])} "
              f"{gib(memory[name]['PSS'])}", flush=True)


def ratios_of(dtype, rates, memory):
    """(what, ratio, goal as text) of one model and type."""
    rows = [("ddp / apart", rates["ddp"] / rates["apart"], f">= {GOALS['apart']:.2f}"),
            ("ddp / one", rates["ddp"] / rates["one"], "")]
    torch = fastest_torch(rates)
    if torch and "torch/apart" in rates:
        rows.append((f"{torch} / torch/apart", rates[torch] / rates["torch/apart"], ""))
    if torch:
        rows.append((f"ddp / {torch}", rates["ddp"] / rates[torch], f">= {GOALS[dtype]:.2f}"))
        for kind, ours in memory["ddp"].items():
            if ours and memory[torch][kind]:
                rows.append((f"{kind}, ddp / {torch}", ours / memory[torch][kind],
                             f"<= {GOALS['memory']:.2f}"))
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--models", default="gpt2,char")
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--python", default=os.environ.get("PYTHON", ""))
    options = parser.parse_args()
    ratios = []
    with sample_text() as options.text:
        print("model  type  program        tokens/s  RSS GiB  PSS GiB")
        for model in options.models.split(","):
            for dtype in options.dtypes.split(","):
                rates, memory = measure(options, model, dtype)
                print_programs(model, dtype, rates, memory)
                ratios += [(model, dtype, *row) for row in ratios_of(dtype, rates, memory)]
    print("\nmodel  type  ratio                           found   goal")
    for model, dtype, what, found, goal in ratios:
        print(f"{model:6} {dtype:5} {what:30} {found:6.2f}   {goal}")


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(str(failure))
