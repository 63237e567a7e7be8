#!/usr/bin/env python3
"""What sharding costs and saves: our strategies against our ddp, and against PyTorch's, in turns.

    make bench-sharding            PYTHON=a python3 with torch (else Lockstep alone)
    bench/sharding/run.py LOCKSTEP [--models gpt2,gpt2-medium] [--dtypes f32,bf16] [--workers 2,4]
        [--rounds 2] [--steps 4] [--micro-batch 1] [--programs ddp,zero3] [--json FILE]

Programs: ddp; zero1, zero2 and zero3 with one copy of the parameters; zero3/private, a copy each;
hybrid and hybrid/private, these in groups of 2; torch/fsdp2 (fully_shard) and torch/zero
(ZeroRedundancyOptimizer) over gloo. All have one thread a worker, and worker i of n the same share
of the processors, so that 4 workers of 2 processors are two on each. A worker computes one
micro-batch a step, of --micro-batch sequences of 256.

Each round runs every program once, every second round in reverse order. A run has two steps that
do not count (set-up), --steps that do, and a last one in which memory is looked at. Tokens/s are of
all workers, from the median of a run's steps; ratios are of runs of the same round, and the median
over the rounds is shown. What is refused, fails, or finds no room in memory is said and left out.

Memory of a worker, at peak: `kinds`, what Lockstep says it asked for, added up; `peers`, what it
reads in its peers' memory, which they have counted; `RSS`, resident size, the largest of any
worker; `PSS`, proportional size, in which a shared page counts once on the machine, the mean of the
workers, the largest that was seen from the last step on (step/memory.py). --json has every
number."""
import argparse
import contextlib
import json
import os
import sys
import tempfile

import report
import strategies
from memory import available_bytes, watch_pss
from programs import (MODELS, Failed, first_line, metrics_of, on_share, result_of, run_together,
                      sample_text, step_ms_of, torch_command, torch_env, torch_result,
                      train_command)

HERE = os.path.dirname(os.path.abspath(__file__))
FIRST_STEPS, LAST_STEPS = 2, 1
OF_RESULT = ("n_params", "ranks", "weights_sha256", "loss_first", "loss_last", "bytes_sent",
             "comm_exposed_ms")


def measured(step_ms):
    return step_ms[FIRST_STEPS:len(step_ms) - LAST_STEPS]


def n_steps(options):
    return FIRST_STEPS + options.steps + LAST_STEPS


def run_ours(options, name, model, dtype, workers, folder):
    command = train_command(options.program, options.text, model, dtype, options.micro_batch,
                            workers, 1, n_steps(options), folder)
    pss = []
    run_together([command + strategies.OURS[name].options], tell=first_line,
                 watch=watch_pss([metrics_of(folder)], n_steps(options) - LAST_STEPS, pss),
                 timeout_s=options.timeout)
    result = result_of(folder)
    return {"step_ms": measured(step_ms_of(metrics_of(folder))), "pss_bytes": pss,
            "peak_rss_bytes": result["peak_rss_bytes"], **{key: result[key] for key in OF_RESULT}}


def run_torch(options, name, model, dtype, workers, folder):
    metrics = [f"{folder}/metrics{rank}" for rank in range(workers)]
    pss, script = [], os.path.join(HERE, "torch_sharded.py")
    commands = [on_share(rank, workers) + torch_command(
        options.python, script, model, dtype, options.micro_batch, 1, n_steps(options),
        "--warmup=0", f"--strategy={strategies.TORCH[name].options}", f"--ranks={workers}",
        f"--rank={rank}", f"--store={folder}/store", f"--metrics={metrics[rank]}")
        for rank in range(workers)]
    printed = run_together(commands, torch_env(), timeout_s=options.timeout,
                           watch=watch_pss(metrics, n_steps(options) - LAST_STEPS, pss))
    found = [torch_result(text) for text in printed]
    return {"step_ms": measured(found[0]["step_ms"]), "pss_bytes": pss,
            "peak_rss_bytes": [f["peak_rss_bytes"] for f in found], "loss_last": found[0]["loss"]}


def run_program(options, name, model, dtype, workers):
    """What a run found, or {"failed": why}."""
    need = strategies.estimated_bytes(name, model, dtype, workers, options.micro_batch)
    room = available_bytes()
    if need > room:
        return {"failed": f"left out: needs about {need / 2**30:.1f} GiB, there are "
                          f"{room / 2**30:.1f}"}
    engine = run_torch if name in strategies.TORCH else run_ours
    with tempfile.TemporaryDirectory() as folder:
        try:
            return engine(options, name, model, dtype, workers, folder)
        except Failed as failure:
            return {"failed": str(failure)}


def measure(options, model, dtype, workers):
    """The runs of all rounds."""
    names = [name for name in options.programs if strategies.makes_sense(name, workers)]
    runs, failed = [], set()
    for turn in range(options.rounds):
        for name in names if turn % 2 == 0 else names[::-1]:
            if name in failed:
                continue
            run = {"model": model, "dtype": dtype, "workers": workers, "round": turn,
                   "program": name, "tokens_per_step": workers * options.micro_batch *
                   MODELS[model][4], **run_program(options, name, model, dtype, workers)}
            if "failed" in run:
                failed.add(name)
                print(f"{name}, {model} {dtype}, {workers} workers: {run['failed']}",
                      file=sys.stderr, flush=True)
            runs.append(run)
    return runs


def names_of(known):
    """An argument that lists names, of which only these are known."""
    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(known)}")
        return names
    return parse


def parse_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--models", type=names_of(MODELS), default="gpt2")
    parser.add_argument("--dtypes", type=names_of(["f32", "bf16"]), default="f32,bf16")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--micro-batch", type=int, default=1, help="sequences of a worker and step")
    parser.add_argument("--programs", type=names_of(strategies.PROGRAMS),
                        default=",".join(strategies.PROGRAMS))
    parser.add_argument("--python", default=os.environ.get("PYTHON", ""))
    parser.add_argument("--timeout", type=float, default=900, help="longest run of a program, s")
    parser.add_argument("--json", help="file for all numbers")
    options = parser.parse_args()
    options.workers = [int(n) for n in options.workers.split(",")]
    if not options.python:
        options.programs = [p for p in options.programs if p not in strategies.TORCH]
    return options


def write_json(path, options, runs):
    about = {key: value for key, value in vars(options).items() if key not in ("text", "json")}
    with open(path, "w") as file:
        json.dump({"processor": report.processor(), "options": about, "runs": runs}, file, indent=1)
        file.write("\n")


def main():
    options = parse_options()
    with sample_text() as options.text:
        runs = []
        report.print_machine(options)
        for model in options.models:
            for dtype in options.dtypes:
                for workers in options.workers:
                    runs += measure(options, model, dtype, workers)
                    report.print_setting(runs, model, dtype, workers)
                    if options.json:
                        write_json(options.json, options, runs)
        report.print_goals(runs)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
