"""What the runs of bench/sharding/run.py say: a table for each setting, then found against wanted.

A run is a dict as --json has it; a setting is a model, a type and a number of workers."""
import os
import statistics

from strategies import OURS, PROGRAMS, STATES, TORCH, state_bytes
from memory import largest_each  # found where strategies looks

GIB = 2.0**30
ZERO3 = ("zero3", "zero3/private")  # the forms that FSDP2 is held against
GOALS = {"fsdp2": 2.0, "kinds/RSS": 0.05, "formula": 0.02}


def processor():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


# ---- what runs say ----

def runs_of(runs, model, dtype, workers):
    """The runs of a setting that went well, by program and round."""
    found = {}
    for run in runs:
        if (run["model"], run["dtype"], run["workers"]) == (model, dtype, workers) and \
                "failed" not in run:
            found.setdefault(run["program"], {})[run["round"]] = run
    return found


def rate(run):
    return run["tokens_per_step"] * 1e3 / statistics.median(run["step_ms"])


def median_rate(rounds):
    return statistics.median(map(rate, rounds.values()))


def ratios(rounds, of):
    """Of the rates, for each round that both have."""
    return [rate(run) / rate(of[turn]) for turn, run in rounds.items() if turn in of]


def largest(rounds):
    """The run that took most memory."""
    return max(rounds.values(), key=lambda run: max(run["peak_rss_bytes"]))


def rss_bytes(run):
    return max(run["peak_rss_bytes"])


def pss_bytes(run):
    return largest_each(run["pss_bytes"], run["workers"])


def kinds_bytes(run):
    return max(rank["peak_total_bytes"] for rank in run["ranks"])


def peer_bytes(rank):
    """What the rank reads in its peers' memory, which they count: resident, but of no kind."""
    return rank.get("peer_bytes", 0)


def kinds_by_rss(run):
    """Kinds and what is the peers', by what is resident; of the rank for which it is farthest from
    1."""
    found = [(rank["peak_total_bytes"] + peer_bytes(rank)) / rank["peak_rss_bytes"]
             for rank in run["ranks"]]
    return max(found, key=lambda ratio: abs(ratio - 1))


def off_formula(run, kind):
    """By what share a kind of states is more than the formula says, of the farthest rank."""
    expected = state_bytes(run["program"], run["dtype"], run["workers"], run["n_params"])[kind]
    return max((rank["peak_bytes"][kind] / expected - 1 for rank in run["ranks"]), key=abs)


# ---- a setting's table ----

def gib(n_bytes):
    return f"{n_bytes / GIB:6.2f}" if n_bytes else "     -"


def spread(values):
    """Median, and the range of several."""
    if not values:
        return "-"
    median = f"{statistics.median(values):.3f}"
    return median if len(values) < 2 else f"{median} ({min(values):.2f}..{max(values):.2f})"


def row_of(name, rounds, ddp):
    run = largest(rounds)
    cells = [f"{name:14}{median_rate(rounds):8.0f}  {spread(ratios(rounds, ddp)):18}"]
    if name in TORCH:
        cells.append(f"{'':13} {gib(rss_bytes(run))} {gib(pss_bytes(run))}")
        return "  ".join(cells)
    peers = max(map(peer_bytes, run["ranks"]))
    cells.append(f"{gib(kinds_bytes(run))} {gib(peers)} {gib(rss_bytes(run))} "
                 f"{gib(pss_bytes(run))} {kinds_by_rss(run):8.3f}")
    cells.append(" ".join(f"{100 * off_formula(run, kind):+7.1f}" for kind in STATES))
    shas = {r["weights_sha256"] for r in [*rounds.values(), *ddp.values()]}
    cells.append("" if not ddp else "same" if len(shas) == 1 else "DIFFER")
    return "  ".join(cells)


def print_machine(options):
    n_cpus = len(os.sched_getaffinity(0))
    print(f"{processor()}, {n_cpus} processors; {options.rounds} rounds of {options.steps} steps, "
          f"micro-batches of {options.micro_batch}, one thread a worker")
    for workers in options.workers:
        if workers > n_cpus:
            print(f"{workers} workers are oversubscribed: {workers / n_cpus:g} to a processor, "
                  "Lockstep's and PyTorch's alike")


def print_setting(runs, model, dtype, workers):
    found = runs_of(runs, model, dtype, workers)
    tokens = [run["tokens_per_step"] for rounds in found.values() for run in rounds.values()]
    if not found:
        return
    print(f"\n{model} {dtype}, {workers} workers, {tokens[0] // workers} tokens a worker and step\n"
          f"{'':44}GiB a worker                (kinds +   % off the formula of\n"
          "program       tokens/s  / ddp               kinds  peers    RSS    PSS peers)/RSS   "
          "params   grads optimizer  weights")
    for name in PROGRAMS:
        if name in found:
            print(row_of(name, found[name], found.get("ddp", {})), flush=True)


# ---- goals ----

def goals_of(found):
    """(what, found, wanted, whether met) of a setting."""
    for name, program in OURS.items():
        both = ratios(found.get(name, {}), found.get("ddp", {}))
        if both and program.goal:
            ratio = statistics.median(both)
            yield f"{name} / ddp", ratio, f">= {program.goal:.2f}", ratio >= program.goal
    forms = [name for name in ZERO3 if name in found]
    if forms and "torch/fsdp2" in found:
        yield from goals_against_torch(found, forms)
    for name in OURS:
        if name in found:
            run = largest(found[name])
            ratio = kinds_by_rss(run)
            yield (f"{name}: (kinds + peers) / RSS", ratio, f"1 +- {GOALS['kinds/RSS']}",
                   abs(ratio - 1) <= GOALS["kinds/RSS"])
            off = max((off_formula(run, kind) for kind in STATES), key=abs)
            yield (f"{name}: states / formula", 1 + off, f"1 +- {GOALS['formula']}",
                   abs(off) <= GOALS["formula"])


def goals_against_torch(found, forms):
    torch = found["torch/fsdp2"]
    both = {name: statistics.median(ratios(found[name], torch)) for name in forms
            if ratios(found[name], torch)}
    if both:
        best = max(both, key=both.get)
        yield (f"{best} / torch/fsdp2", both[best], f">= {GOALS['fsdp2']:.2f}",
               both[best] >= GOALS["fsdp2"])
    for what, size in ("RSS", rss_bytes), ("PSS", pss_bytes):
        for name in forms:
            ours, theirs = size(largest(found[name])), size(largest(torch))
            if ours and theirs:
                yield f"{what}, {name} / torch/fsdp2", ours / theirs, "< 1", ours < theirs


def print_goals(runs):
    settings = dict.fromkeys((run["model"], run["dtype"], run["workers"]) for run in runs)
    print(f"\n{'model':12} type  workers  {'what':36}  found  goal        met")
    for model, dtype, workers in settings:
        for what, value, goal, is_met in goals_of(runs_of(runs, model, dtype, workers)):
            print(f"{model:12} {dtype:5} {workers:7}  {what:36} {value:6.3f}  {goal:10}  "
                  f"{'yes' if is_met else 'no'}")
