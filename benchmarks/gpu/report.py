"""python -m benchmarks.gpu report DIR [--out FOLDER] [--profiles FOLDER]: a summary of the results of a run.

It writes OUT/<card>/summary.md (default: benchmarks/results) and, with --profiles,
FOLDER/<shape>-<card>-static/arlo.json for `arlo simulate --profile`.
It prints rows for docs/figures.md.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import MIXES, Cell

NOT_RUN, COMMAND = "not run", "benchmarks/gpu/offline/run.sh 560 --out DIR"
STATIC_KINDS = ("static", "compiled", "dynamic", "eager")  # of equally many cells the first is taken
PACKED_KINDS = ("packed", "packed-compiled", "packed-eager")
RESULTS = Path(__file__).resolve().parent.parent / "results"


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
    if given.profiles:
        profiles.write(results, given.profiles)
    print("\n".join([str(folder), *figures(results)]))
    return 0
