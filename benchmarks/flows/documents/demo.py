"""The documents flow of `make pipeline-demo`, from manuals to figures: see the package, and docs/pipeline-tensors.md.

python -m benchmarks.flows.documents.demo [--pages 4] [--out reports/pipeline/documents.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arlo.errors import ArloError
from benchmarks.cascade.cached import cache_root
from benchmarks.flows import pipeline_demo
from benchmarks.flows.documents import sources
from benchmarks.flows.documents.record import SIDES, SQUEEZES
from benchmarks.flows.documents.served import Truth, measure, prepared
from benchmarks.harness import machine

DEPTHS = (1, 2)  # layers of MiniLM
ROWS = 2500  # runs of lines to train with
RECORDED = 600  # of them that its accuracy is counted on
MAX_TOKENS = 128  # of a page, which is cut


def say(text: str) -> None:
    print(f"pipeline-demo: documents: {text}", file=sys.stderr, flush=True)


def classifiers(work: Path, root: Path, pages: Sequence[sources.Page]) -> list[str]:
    """Trains and compiles the last stage, and counts how accurate it is; the names of its labels."""
    command: Callable[..., str] = pipeline_demo.command
    data = root / "cascade" / sources.NAME
    if not (data / "train.jsonl").is_file():
        sources.write_runs(pages, data)
    depths = [str(depth) for depth in DEPTHS]
    say("models of pages")
    made = ["--rows", str(ROWS), "--max-tokens", str(MAX_TOKENS)]
    command("benchmarks.cascade.train", "--data", sources.NAME, "--depths", *depths, *made)
    repositories = [work / f"manual-{depth}" for depth in DEPTHS]
    for depth, repository in zip(DEPTHS, repositories, strict=True):
        model = root / "cascade" / f"{sources.NAME}-l{depth}-{ROWS}" / "model.onnx"
        options = ["--name", repository.name, "--lengths", str(MAX_TOKENS), "--max-batch", "8", "--no-dynamic"]
        command("arlo.cli", "compile", model, "--out", repository, *options)
    lines = (data / "select.jsonl").read_text().splitlines()[:RECORDED]
    (work / "select.jsonl").write_text("\n".join(lines) + "\n")
    command("arlo.cli", "accuracy", *repositories, "--data", work / "select.jsonl", "--out", work / "records")
    labels: list[str] = json.loads((repositories[0] / "arlo.json").read_text())["labels"]
    return labels


def run(count: int) -> dict[str, Any]:
    """The figures of the flow. ArloError where something is missing."""
    root = cache_root()
    work = root / "pipeline" / "documents"
    work.mkdir(parents=True, exist_ok=True)
    say("manuals and networks")
    fetched = sources.fetch(root)
    pages = sources.pages_of(fetched)
    labels = classifiers(work, root, pages)
    recorded, slo_ms = asyncio.run(prepared(work, fetched, sources.shown(pages, "fit", 3), DEPTHS, say))
    truth = Truth(fetched, sources.shown(pages, "test", count), labels)
    variants: dict[str, Sequence[str]] = {
        "detect": [f"detect-{side}" for side in SIDES],
        "orient": ["orient"],
        "read": [f"read-{squeeze:g}" for squeeze in SQUEEZES],
        "manual": [f"manual-{depth}" for depth in DEPTHS],
    }
    with pipeline_demo.served(work) as ready:
        loads = asyncio.run(measure(ready, truth, slo_ms, variants, say))
    usual = {key: value for key, value in loads[1].items() if key != "rows"}
    return {**usual, "slo_ms": slo_ms, "stages": loads[1]["rows"], "loads": loads, "records": recorded}


HEAD = [
    "pages a second", "pages", "answered", "failed", "late", "lines", "letters right", "60 dpi", "100 dpi", "150 dpi",
    "manuals right", "expected", "mean, ms", "p98, ms", "rows",
]  # fmt: skip


def rows_of(result: dict[str, Any]) -> list[list[str]]:
    """The figures as a table."""
    return [
        [
            f"{one['rate']:g}" if one["rate"] else "one at a time",
            *(str(one[key]) for key in ("roots", "answered", "failed", "late", "lines")),
            f"{one['accuracy']:.1%}",
            *(f"{share:.1%}" for share in one["accuracy_by_dpi"].values()),
            *(f"{one[key]:.1%}" for key in ("manual_right", "accuracy_expected")),
            *(f"{one[key]:.0f}" for key in ("mean_ms", "p98_ms")),
            ", ".join(f"{count} {name}" for counts in one["rows"].values() for name, count in counts.items() if count),
        ]
        for one in result["loads"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=4, help="pages, each at three resolutions (default: 4)")
    parser.add_argument("--out", type=Path, default=Path("reports/pipeline/documents.json"))
    args = parser.parse_args()
    try:
        result = run(args.pages)
    except ArloError as error:
        say(str(error))
        return 1
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({**result, "machine": machine()}, indent=1) + "\n")
    for row in (HEAD, *rows_of(result)):
        print("  ".join(row))
    return 1 if any(one["answered"] + one["failed"] != one["roots"] for one in result["loads"]) else 0


if __name__ == "__main__":
    sys.exit(main())
