"""python -m benchmarks.gpu report DIR [--out FOLDER]: summary, pictures and profiles from the results of a run.

It writes FOLDER/<card>/ (default: benchmarks/results): summary.md, up to two SVG pictures, packed.json (the cost of
packed batches) and profiles/<shape>-<card>-static/arlo.json for `arlo simulate --profile`. It prints rows for
docs/figures.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
NOT_RUN, COMMAND = "not run", "benchmarks/gpu/offline/run.sh 560 --out DIR"
MIXES = ("tweets", "rag", "mix")
STATIC_KINDS = ("static", "compiled", "dynamic", "eager")  # of equally many cells the first is taken
PACKED_KINDS = ("packed", "packed-compiled", "packed-eager")
RESULTS = Path(__file__).resolve().parent.parent / "results"


@dataclasses.dataclass(frozen=True, slots=True)
class Results:
    """The results of one run; of a stage that was not run, nothing."""

    facts: Cell
    table: list[Cell]
    mixes: list[Cell]
    serve: list[Cell]
    ort: list[Cell]

    @classmethod
    def read(cls, folder: Path) -> Results:
        """From the stages' files."""
        paths = [folder / f"{field.name}.json" for field in dataclasses.fields(cls)]
        empty: list[Any] = [{}, [], [], [], []]
        found = [json.loads(p.read_text()) if p.exists() else e for p, e in zip(paths, empty, strict=True)]
        return cls(*found)

    @property
    def card(self) -> str:
        """The folder of results: `nvidia-h100`, or `cpu`."""
        return "-".join(re.findall(r"[a-z0-9]+", str(self.facts.get("name", "cpu")).lower())[:2])

    @property
    def ceiling(self) -> float | None:
        """The card's own matmul rate, TFLOP/s."""
        return self.facts.get("matmul_tflops")

    def cell(self, **about: object) -> Cell:
        """The first cell of the table like this that was measured; empty: none."""
        like = (cell for cell in self.table if all(cell.get(name) == value for name, value in about.items()))
        return next((cell for cell in like if "error" not in cell), {})

    def plan(self, mix: str, plan: str) -> Cell:
        """The measured cell of one plan of a mix; empty: there is none."""
        return next((c for c in self.mixes if (c["mix"], c["plan"]) == (mix, plan) and "rows_s" in c), {})

    def shapes(self) -> list[str]:
        """Shapes of the table, in its order."""
        return list(dict.fromkeys(str(cell["shape"]) for cell in self.table))

    def cells(self, shape: str, kinds: Sequence[str]) -> list[Cell]:
        """The measured cells of a shape, of the kind that has most of them."""
        each = [
            [c for c in self.table if (c["shape"], c["kind"]) == (shape, kind) and "graph_ms" in c] for kind in kinds
        ]
        return max(each, key=len)


def figures(results: Results) -> list[str]:
    """Rows for docs/figures.md; what was not run has none."""
    found: list[tuple[str, str]] = []
    if one := results.cell(shape="bert-base", kind="eager", length=16, rows=1):
        times = f"{one['launched_ms']:.2f} to {one['graph_ms']:.2f} ms"
        found.append(("BERT-base fp16, one row of 16 tokens, kernels launched one by one to a CUDA graph", times))
    for shape in results.shapes():
        cells = [c for c in results.table if c["shape"] == shape and c.get("tokens") == 16384 and c.get("mix") in MIXES]
        if results.ceiling and (best := max(cells, key=lambda cell: float(cell.get("tflops", 0)), default=None)):
            text = f"{best['tflops']:.0f} TFLOP/s, {100 * best['tflops'] / results.ceiling:.0f} %"
            what = f"{shape} fp16, 16,384 packed tokens ({best['mix']}): rate, share of the card's matmul"
            found.append((what, text))
    for mix in MIXES:
        plans = [c for c in results.mixes if c["mix"] == mix and "rows_s" in c]
        if plans and (base := results.plan(mix, "lengths8")):
            best = max(plans, key=lambda cell: float(cell["rows_s"]))
            text = f"{best['rows_s']:,.0f} ({best['plan']}), {best['rows_s'] / base['rows_s']:.2f} times 8 lengths"
            found.append((f"{best['shape']} fp16, a long queue of `{mix}`: rows/s", text))
    for cell in results.serve:
        if cell.get("kept_rows_s"):
            what = f"{cell['shape']} fp16 served by {cell['server']}, {cell['workers']} worker(s), `{cell['mix']}`"
            what += f": rows/s of which 99 % are within {cell['slo_ms']:g} ms"
            found.append((what, f"{cell['kept_rows_s']:,.0f}"))
    card, command = results.facts.get("name", "CPU"), results.facts.get("command", COMMAND)
    return [f"| {card}, {what} | {text} | `{command}` |" for what, text in found]


def main(arguments: Sequence[str]) -> int:
    """Write the report of one run."""
    from benchmarks.gpu import pictures, profiles, summary

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu report", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    results = Results.read(given.folder)
    folder = given.out / results.card
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.md").write_text(summary.summary(results))
    for name, text in pictures.pictures(results).items():
        (folder / name).write_text(text)
    problems = profiles.write(results, folder)
    print("\n".join([*problems, str(folder), *figures(results)]))
    return 0
