#!/usr/bin/env python3
"""Draws the memory of a worker by strategy, from what bench/sharding/run.py --json left.

    bench/sharding/picture.py FILE.json [--model gpt2] [--dtype f32] [--workers 2] >memory.svg

A bar is a program: at peak, the bytes of each kind on the rank that has most, then what it reads
in its peers' memory, which they have counted. A line marks its resident size, a dot its
proportional size, in which shared pages count once (see step/memory.py). Of PyTorch's programs
only these are known."""
import argparse
import html
import json

from report import GIB, largest, peer_bytes, pss_bytes, rss_bytes, runs_of
from strategies import PROGRAMS

KINDS = {  # in the order of the bar
    "params": ("parameters", "#3b6fb6"), "gathered": ("gathered units", "#8fb4e3"),
    "grads": ("gradients", "#d9772b"), "buckets": ("buckets", "#f1b67e"),
    "staging": ("staging", "#e3c9a8"), "optimizer": ("optimizer", "#3f8f5b"),
    "activations": ("activations", "#9a7bb8"), "other": ("other", "#a9a9a9"),
    "peers": ("of peers", "#f2f2f2"),
}
UNKNOWN_COLOR = "#d98cb3"
DASHES = 'stroke="#999" stroke-dasharray="4 3"'  # bytes that are not of a kind
WIDTH, LEFT, RIGHT, TOP, ROW, BAR, LEGEND_ROW = 900, 130, 80, 64, 40, 24, 20
LEGEND_COLUMN, FONT = 150, 'font-family="Helvetica, Arial, DejaVu Sans, sans-serif"'


class Row:
    """What is drawn of a program; bytes."""

    def __init__(self, name, run):
        rank = max(run.get("ranks", []), key=lambda r: r["peak_total_bytes"], default={})
        kinds = {**rank.get("peak_bytes", {}), "peers": peer_bytes(rank)}
        order = [k for k in KINDS if k in kinds] + [k for k in kinds if k not in KINDS]
        self.name = name
        self.kinds = [(kind, kinds[kind]) for kind in order if kinds[kind] > 0]
        self.rss = rank.get("peak_rss_bytes", rss_bytes(run))
        self.pss = pss_bytes(run)

        self.own = rank.get("peak_total_bytes", 0)

    def longest(self):
        return max(sum(n_bytes for _, n_bytes in self.kinds), self.rss, self.pss or 0)


def label_of(kind):
    return KINDS.get(kind, (kind, UNKNOWN_COLOR))


# ---- SVG ----

def text(x, y, words, size=13, anchor="start", color="#222", more=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{color}" {more}>{html.escape(words)}</text>')


def box(x, y, width, height, color, more="", title=""):
    inside = f"<title>{html.escape(title)}</title>" if title else ""
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{color}" {more}>{inside}</rect>')


def line(x, y, end_x, end_y, color, width):
    return (f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{end_x:.1f}" y2="{end_y:.1f}" '
            f'stroke="{color}" stroke-width="{width}"/>')


def rss_mark(x, y):
    return line(x, y - 4, x, y + BAR + 4, "#000", 2)


def pss_mark(x, y):
    return (f'<circle cx="{x:.1f}" cy="{y + BAR / 2:.1f}" r="4" fill="#fff" stroke="#000" '
            f'stroke-width="1.5"/>')


def nice_step(longest):
    """GiB between grid lines: at most eight of them."""
    return next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
                if longest / GIB / step <= 8)


def grid(scale, longest, bottom):
    step = nice_step(longest)
    for i in range(int(longest / GIB / step) + 1):
        x = LEFT + i * step * GIB * scale
        yield line(x, TOP, x, bottom, "#ddd", 1)
        words = f"{i * step:g}" + (" GiB" if i == 0 else "")
        yield text(x, bottom + 18, words, 12, "middle", "#555")


def bar(row, y, scale):
    x = LEFT
    yield text(LEFT - 10, y + BAR - 7, row.name, 14, "end")
    for kind, n_bytes in row.kinds:
        name, color = label_of(kind)
        yield box(x, y, n_bytes * scale, BAR, color, DASHES if kind == "peers" else "",
                  f"{name}: {n_bytes / GIB:.3f} GiB")
        x += n_bytes * scale
    if not row.kinds:
        yield box(x, y, row.rss * scale, BAR, "#f2f2f2", DASHES)
    yield rss_mark(LEFT + row.rss * scale, y)
    if row.pss:
        yield pss_mark(LEFT + row.pss * scale, y)
    shown = row.own or row.rss
    yield text(LEFT + row.longest() * scale + 12, y + BAR - 7, f"{shown / GIB:.2f}", 13)


def legend(rows, y):
    used = {kind for row in rows for kind, _ in row.kinds}
    kinds = [k for k in KINDS if k in used] + sorted(used - set(KINDS))
    entries = [(box(0, 0, 14, 14, label_of(k)[1]), label_of(k)[0]) for k in kinds]
    entries.append((line(7, -2, 7, 16, "#000", 2), "RSS"))
    if any(row.pss for row in rows):
        entries.append(('<circle cx="7" cy="7" r="4" fill="#fff" stroke="#000" '
                        'stroke-width="1.5"/>', "PSS"))
    columns = (WIDTH - 20) // LEGEND_COLUMN
    for i, (mark, name) in enumerate(entries):
        x, at = 20 + i % columns * LEGEND_COLUMN, y + i // columns * LEGEND_ROW
        yield f'<g transform="translate({x},{at})">{mark}{text(20, 12, name)}</g>'


def draw(title, subtitle, rows):
    longest = max(row.longest() for row in rows)
    scale = (WIDTH - LEFT - RIGHT) / longest
    bottom = TOP + ROW * len(rows)
    height = bottom + 40 + 3 * LEGEND_ROW
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             f'viewBox="0 0 {WIDTH} {height}" {FONT}>', box(0, 0, WIDTH, height, "#fff"),
             text(20, 26, title, 17, more='font-weight="bold"'), text(20, 47, subtitle, 13)]
    parts += grid(scale, longest, bottom)
    for i, row in enumerate(rows):
        parts += bar(row, TOP + ROW * i + (ROW - BAR) / 2, scale)
    parts += legend(rows, bottom + 36)
    return "\n".join([*parts, "</svg>"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("json")
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    file = json.load(open(options.json))
    found = runs_of(file["runs"], options.model, options.dtype, options.workers)
    rows = [Row(name, largest(found[name])) for name in PROGRAMS if name in found]
    if not rows:
        parser.error(f"no runs of {options.model} {options.dtype} with {options.workers} workers")
    n_params = max(run.get("n_params", 0) for rounds in found.values() for run in rounds.values())
    print(draw(f"Memory of a worker, {options.model} ({n_params / 1e6:.0f} M parameters), "
               f"{options.dtype}, {options.workers} workers",
               f"At peak, GiB; micro-batches of {file['options']['micro_batch']}. Numbers: its own "
               "kinds (PyTorch: RSS). PSS counts pages that workers share once.", rows))


if __name__ == "__main__":
    main()
