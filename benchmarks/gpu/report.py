"""python -m benchmarks.gpu report DIR [--out FOLDER] [--profiles FOLDER]: a summary of the results of a run.

It writes OUT/<card>/ (default: benchmarks/results): summary.md, up to two SVG pictures and packed.json (the cost of
packed batches). With --profiles it also writes FOLDER/<shape>-<card>-static/arlo.json for `arlo simulate --profile`.
It prints rows for docs/figures.md.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import MIXES, Cell

NOT_RUN, COMMAND = "not run", "benchmarks/gpu/offline/run.sh 560 --out DIR"
STATIC_KINDS = ("static", "compiled", "dynamic", "eager")  # of equally many cells the first is taken
PACKED_KINDS = ("packed", "packed-compiled", "packed-eager")
RESULTS = Path(__file__).resolve().parent.parent / "results"
COLOURS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
WIDTH, HEIGHT, LEFT, TOP = 560, 300, 60, 44
DRAWN = {("eager", "launched"), ("dynamic", "launched"), ("eager", "graph"), ("compiled", "graph"), ("static", "graph")}

Lines = dict[str, dict[float, float]]


class Results:
    """The results of one run; stages that were not run have none."""

    def __init__(self, folder: Path) -> None:
        def read(stage: str) -> Any:
            path = folder / f"{stage}.json"
            return json.loads(path.read_text()) if path.exists() else []

        self.facts: Cell = dict(read("facts"))
        stages = ("table", "mixes", "serve", "ort")
        self.table, self.mixes, self.serve, self.ort = (list[Cell](read(stage)) for stage in stages)
        self.shapes = list(dict.fromkeys(str(cell["shape"]) for cell in self.table))
        self.ceiling: float | None = self.facts.get("matmul_tflops")  # TFLOP/s of the card's own matrix product

    @property
    def card(self) -> str:
        """The folder of results: `nvidia-h100`, or `cpu`."""
        return "-".join(re.findall(r"[a-z0-9]+", str(self.facts.get("name", "cpu")).lower())[:2])

    def cell(self, **about: object) -> Cell:
        """The first cell of the table like this that was measured; empty: none."""
        like = (cell for cell in self.table if all(cell.get(name) == value for name, value in about.items()))
        return next((cell for cell in like if "error" not in cell), {})

    def plan(self, mix: str, plan: str) -> Cell:
        """The measured cell of one plan of a mix; empty: there is none."""
        return next((c for c in self.mixes if (c["mix"], c["plan"]) == (mix, plan) and "rows_s" in c), {})

    def rates(self, mix: str) -> dict[str, float]:
        """Rows a second of a mix by plan."""
        return {str(cell["plan"]): cell["rows_s"] for cell in self.mixes if cell["mix"] == mix and "rows_s" in cell}

    def fastest(self, shape: str) -> Cell:
        """The cell of the highest rate of a bucket of 16,384 tokens; empty: there is none."""
        cells = [self.cell(shape=shape, kind=kind, tokens=16384, mix=mix) for kind in PACKED_KINDS for mix in MIXES]
        return max(cells, key=lambda cell: float(cell.get("tflops", 0)))

    def cells(self, shape: str, kinds: Sequence[str]) -> list[Cell]:
        """The measured cells of a shape, of the kind that has most of them."""
        measured = [cell for cell in self.table if cell["shape"] == shape and "graph_ms" in cell]
        return max(([cell for cell in measured if cell["kind"] == kind] for kind in kinds), key=len)


def pictures(results: Results) -> dict[str, str]:
    """Texts of the pictures by file name; pictures without measurements are left out."""
    latency: Lines = {}
    rates: Lines = {}
    for cell in results.table:
        for how in ("launched", "graph"):
            time = cell.get(f"{how}_ms")
            if cell["shape"] == "bert-base" and cell.get("rows") in (1, 32) and (cell["kind"], how) in DRAWN and time:
                name = f"{cell['kind']} {how}, {cell['rows']} row{'s' * (cell['rows'] > 1)}"
                latency.setdefault(name, {})[cell["length"]] = time
        if cell["kind"] in PACKED_KINDS and cell.get("mix") == "mix" and "tflops" in cell:
            rates.setdefault(f"{cell['shape']} {cell['kind']}", {})[cell["tokens"]] = cell["tflops"]
    drawn = {
        "latency.svg": ("BERT-base fp16: a batch over the length", "tokens in a row; ms", latency),
        "packed.svg": ("Packed rows of `mix`: rate by bucket", "tokens in the bucket; TFLOP/s", rates),
    }
    return {name: svg(*picture) for name, picture in drawn.items() if picture[2]}


def svg(title: str, axes: str, lines: Mapping[str, Mapping[float, float]]) -> str:
    """A line for each name, over values that are spaced evenly."""
    at = sorted({x for line in lines.values() for x in line})
    top = max(y for line in lines.values() for y in line.values()) * 1.05 or 1.0
    place = {x: LEFT + WIDTH * index / max(1, len(at) - 1) for index, x in enumerate(at)}
    right, bottom = LEFT + WIDTH, TOP + HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + 20}" height="{bottom + 44 + 16 * len(lines)}" '
        'font-family="system-ui, sans-serif" font-size="11" fill="#333">',
        f'<rect width="100%" height="100%" fill="white"/><text x="{LEFT}" y="20" font-size="14">{title}</text>',
        f'<text x="{right}" y="{bottom + 28}" text-anchor="end">{axes}</text>',
    ]
    for x in at:
        parts.append(f'<path d="M{place[x]:.0f} {TOP}v{HEIGHT}" stroke="#eee"/>')
        parts.append(f'<text x="{place[x]:.0f}" y="{bottom + 14}" text-anchor="middle">{x:,g}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = bottom - HEIGHT * share
        parts.append(f'<path d="M{LEFT} {y:.0f}h{WIDTH}" stroke="#eee"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{y + 4:.0f}" text-anchor="end">{share * top:.3g}</text>')
    for index, (name, line) in enumerate(lines.items()):
        y, stroke = bottom + 40 + 16 * index, f'stroke="{COLOURS[index % len(COLOURS)]}" stroke-width="1.8"'
        points = " ".join(f"{place[x]:.1f},{bottom - HEIGHT * value / top:.1f}" for x, value in sorted(line.items()))
        parts.append(f'<polyline points="{points}" fill="none" {stroke}/><path d="M{LEFT} {y - 4}h24" {stroke}/>')
        parts.append(f'<text x="{LEFT + 30}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def figures(results: Results) -> list[str]:
    """Rows for docs/figures.md; benchmarks that were not run have none."""
    found: dict[str, str] = {}
    if one := results.cell(shape="bert-base", kind="eager", length=16, rows=1):
        what = "BERT-base fp16, one row of 16 tokens, kernels launched one by one to a CUDA graph"
        found[what] = f"{one['launched_ms']:.2f} to {one['graph_ms']:.2f} ms"
    for shape in results.shapes:
        if results.ceiling and (best := results.fastest(shape)):
            what = f"{shape} fp16, 16,384 packed tokens ({best['mix']}): rate, share of the card's matmul"
            found[what] = f"{best['tflops']:.0f} TFLOP/s, {100 * best['tflops'] / results.ceiling:.0f} %"
    for mix in MIXES:
        if base := (rates := results.rates(mix)).get("lengths8"):
            rate, plan = max((rate, plan) for plan, rate in rates.items())
            what = f"{results.mixes[0]['shape']} fp16, a long queue of `{mix}`: rows/s"
            found[what] = f"{rate:,.0f} ({plan}), {rate / base:.2f} times 8 lengths"
    for cell in results.serve:
        if kept := cell.get("kept_rows_s"):
            what = f"{cell['shape']} fp16 served by {cell['server']}, {cell['workers']} worker(s), `{cell['mix']}`"
            found[f"{what}: rows/s of which 99 % are within {cell['slo_ms']:g} ms"] = f"{kept:,.0f}"
    card, command = results.facts.get("name", "CPU"), results.facts.get("command", COMMAND)
    return [f"| {card}, {what} | {text} | `{command}` |" for what, text in found.items()]


def main(arguments: Sequence[str]) -> int:
    """Write the report of one run."""
    from benchmarks.gpu import profiles, summary

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu report", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--profiles", type=Path)
    given = parser.parse_args(arguments)
    results = Results(given.folder)
    folder = given.out / results.card
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.md").write_text(summary.summary(results))
    for name, text in pictures(results).items():
        (folder / name).write_text(text)
    if costs := profiles.costs(results):
        (folder / "packed.json").write_text(costs)
    if given.profiles:
        profiles.write(results, given.profiles)
    print("\n".join([str(folder), *figures(results)]))
    return 0
