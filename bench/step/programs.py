"""What the benchmarks in Python share: sizes of models, the text to train on, how programs are
started and pinned, and how what they leave is read."""
import contextlib
import json
import os
import subprocess
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = {  # layers, heads, width, vocabulary, T, B
    "gpt2": (12, 12, 768, 50257, 256, 4),
    "gpt2-1024": (12, 12, 768, 50257, 1024, 1),
    "gpt2-medium": (24, 16, 1024, 50257, 256, 4),
    "char": (6, 6, 384, 256, 256, 8),
    "tiny": (2, 2, 64, 256, 64, 4),
}


class Failed(Exception):
    """A program did not end well; the text says why."""


def n_params(layers, width, vocab):
    return layers * 12 * width * width + vocab * width


@contextlib.contextmanager
def sample_text():
    """A file to train on; what the tokens are does not change the time."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write("".join(chr(32 + (i * i * 7 + i * 13) % 90) for i in range(400000)))
        text.flush()
        yield text.name


# ---- starting ----

def on_processors(cpus):
    return ["taskset", "-c", ",".join(map(str, cpus))]


def on_share(part, n_parts):
    """The processors that `lockstep` binds worker `part` of n_parts to."""
    cpus = sorted(os.sched_getaffinity(0))
    first, end = len(cpus) * part // n_parts, len(cpus) * (part + 1) // n_parts
    return on_processors(cpus[first:max(end, first + 1)])


def first_line(text):
    return (text.strip().splitlines() or ["?"])[0]


def last_line(text):
    return (text.strip().splitlines() or ["?"])[-1]


def run_together(commands, env=None, tell=last_line, watch=None, timeout_s=None):
    """Starts all, waits for all, returns what they print. Failed if one fails, with what tell makes
    of its errors; its peers notice by themselves, or are ended at the time-out. watch(pids, ended)
    runs beside them until the event `ended` is set."""
    started = [subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE) for command in commands]
    printed, ended, is_late = [], threading.Event(), False
    if watch:
        threading.Thread(target=watch, args=([p.pid for p in started], ended), daemon=True).start()
    try:
        for process in started:
            printed.append(process.communicate(timeout=timeout_s))
    except subprocess.TimeoutExpired:
        is_late = True
    finally:
        ended.set()
        for process in started:
            process.kill()  # does nothing to those that were waited for
    printed += [process.communicate() for process in started[len(printed):]]
    for process, (_, err) in zip(started, printed):
        if process.returncode > 0:
            raise Failed(tell(err))
    if is_late:
        raise Failed(f"did not end within {timeout_s} s")
    for process in started:
        if process.returncode:
            raise Failed(f"ended by signal {-process.returncode}")
    return [out for out, _ in printed]


# ---- Lockstep ----

def train_command(program, text, model, dtype, batch, workers, threads, steps, folder):
    """`lockstep train` with micro-batches of `batch`, one a worker and step; leaves its run and its
    result in folder."""
    layers, heads, width, vocab, seq, _ = MODELS[model]
    return [program, "train", "--data", text, "--model", "gpt2", "--n-layer", str(layers),
            "--n-head", str(heads), "--n-embd", str(width), "--vocab-size", str(vocab),
            "--seq-len", str(seq), "--batch-size", str(batch * workers),
            "--micro-batch-size", str(batch), "--dtype", dtype, "--workers", str(workers),
            "--threads", str(threads), "--steps", str(steps), "--val-fraction", "0",
            "--out", folder + "/run", "--json", folder + "/result.json"]


def metrics_of(folder):
    return folder + "/run/metrics.jsonl"


def step_ms_of(metrics):
    rows = [json.loads(line) for line in open(metrics)]
    return [row["step_ms"] for row in rows if "step_ms" in row]


def result_of(folder):
    return json.load(open(folder + "/result.json"))


# ---- PyTorch ----

def torch_command(python, script, model, dtype, batch, threads, steps, *more):
    """A script that takes the options of torch_gpt2.py."""
    layers, heads, width, vocab, seq, _ = MODELS[model]
    return [python, script, f"--layers={layers}", f"--heads={heads}", f"--embd={width}",
            f"--vocab={vocab}", f"--seq={seq}", f"--batch={batch}", f"--threads={threads}",
            f"--dtype={dtype}", f"--steps={steps}", *more]


def torch_env():
    return dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")


def torch_result(printed):
    return json.loads(last_line(printed))
