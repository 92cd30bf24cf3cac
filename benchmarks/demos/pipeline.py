"""`make pipeline-demo`: a pipeline on real text and real Triton workers, from models to a report.

    python -m benchmarks.demos.pipeline [--depths 1 2] [--rows 8000] [--texts 400]

Descriptions of packages are classified into their sections, in pieces of at most 64 tokens. MiniLM cut after 1 or 2 of
its layers, as the load permits, classifies each piece; a text's answer is the mean over its pieces. `arlo serve` serves
that flow on one worker; texts that no model was trained on go to it one at a time, then at random moments at half of
the rate at which it answered these, and at 1.5 times that rate.

Writes result.json and index.html into reports/pipeline; the exit code is 1 if a row was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arlo.client import AsyncClient
from arlo.control.gateway.admin import AdminClient
from arlo.report.page import render, table, write
from benchmarks.demos.common import command, ended, say, send, served
from benchmarks.demos.data import cache_root
from benchmarks.harness import machine

NAME, STAGE = "sections", "section"
OUTPUTS = ["logits", "children", "accuracy_expected", "reason"]
MAX_TOKENS = 256  # in training
SERVE = '[pipeline]\nflow = "flow.toml"\nwindow = 64\npool = "mean"\n'


def prepare(work: Path, depths: Sequence[int], rows: int, recorded: int) -> list[dict[str, Any]]:
    """Make models, engines, accuracies, the flow and serve.toml; returns unused texts, {"text", "label"}."""
    root = cache_root() / "cascade"
    say("data and models")
    command("benchmarks.demos.data", NAME)
    made = ["--rows", str(rows), "--max-tokens", str(MAX_TOKENS)]
    command("benchmarks.demos.train", "--data", NAME, "--depths", *map(str, depths), *made)
    repositories = [work / f"layers-{depth}" for depth in depths]
    for depth, repository in zip(depths, repositories, strict=True):
        say(f"engines of {depth} layer(s)")
        model = root / f"{NAME}-l{depth}-{rows}" / "model.onnx"
        options = ["--name", repository.name, "--lengths", "32,64", "--max-batch", "4", "--no-dynamic"]
        command("arlo.cli", "compile", model, "--out", repository, *options)
    say("accuracy of each, on whole texts of at most 64 tokens")
    lines = (root / NAME / "select.jsonl").read_text().splitlines()[:recorded]
    data = work / "select.jsonl"
    cut = [json.loads(line) for line in lines]
    data.write_text("".join(json.dumps(one | {"text": " ".join(one["text"].split()[:30])}) + "\n" for one in cut))
    command("arlo.cli", "fit", "--variants", *repositories, "--data", data, "--records", work / "records")
    variants = "".join(f'[[flow.stage.variant]]\nrepository = "{each.name}"\n' for each in repositories)
    (work / "flow.toml").write_text(
        f'[flow]\nname = "{NAME}"\nslo_ms = 100\nrecords = "records"\n[[flow.stage]]\nname = "{STAGE}"\n{variants}'
    )
    return [json.loads(line) for line in (root / NAME / "test.jsonl").read_text().splitlines()]


async def counts_of(admin: str, models: Sequence[str]) -> dict[str, int]:
    """Rows that each variant has answered so far, and rows that the stage gave up."""
    found = {}
    for model in models:
        async with AdminClient(admin, model=f"{NAME}.{STAGE}.{model}") as client:
            outcomes = (await client.stats()).outcomes
            found[model] = outcomes.on_time + outcomes.late
    async with AdminClient(admin, model=NAME) as client:
        (stage,) = (await client.stats()).pipeline
        found["rerouted"], found["dropped"] = stage.rerouted, sum(stage.dropped)
    return found


async def load(
    address: str, repository: Path, texts: Sequence[dict[str, Any]], labels: Sequence[str], rate: float
) -> dict[str, Any]:
    """Send texts at random moments, on average `rate` a second; 0: one after the other."""
    label_of = {one["text"]: one["label"] for one in texts}
    right, pieces, expected = [], [], []
    async with AsyncClient(address, model=NAME, tokenizer=repository / "tokenizer.json") as client:

        async def ask(text: str) -> None:
            answer = (await client.infer_batch([text], outputs=OUTPUTS)).outputs
            right.append(labels[int(np.argmax(answer["logits"]))] == label_of[text])
            pieces.append(int(np.asarray(answer["children"]).sum()))
            expected.append(float(np.asarray(answer["accuracy_expected"]).sum()))

        found = await send(ask, list(label_of), rate)
    count = max(found["answered"], 1)
    return {**found, "pieces": sum(pieces), "accuracy": sum(right) / count, "accuracy_expected": sum(expected) / count}


async def measure(ready: dict[str, Any], work: Path, depths: Sequence[int], texts: Sequence[dict[str, Any]]) -> Any:
    """The figures of each load, in turn."""
    models = [f"layers-{depth}" for depth in depths]
    repository = work / models[0]
    labels = json.loads((repository / "arlo.json").read_text())["labels"]
    found = []
    before = await counts_of(ready["admin"], models)
    alone_ms = 0.0
    for share in (0.0, 0.5, 1.5):
        rate = round(1000 / alone_ms * share, 1) if share else 0.0
        say(f"{len(texts)} texts " + (f"at {rate:g} a second" if rate else "one at a time"))
        one = await load(ready["grpc"], repository, texts, labels, rate)
        after = await counts_of(ready["admin"], models)
        one["rows"] = {name: after[name] - before[name] for name in after}
        alone_ms, before = alone_ms or one["mean_ms"], after
        found.append(one)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs=2, default=[1, 2], help="layers of the variants (default: 1 2)")
    parser.add_argument("--rows", type=int, default=8000, help="texts to train with (default: 8000)")
    parser.add_argument("--recorded", type=int, default=600, help="texts that accuracies are counted on (default: 600)")
    parser.add_argument("--texts", type=int, default=400, help="that are sent in each load (default: 400)")
    parser.add_argument("--out", type=Path, default=Path("reports/pipeline"))
    args = parser.parse_args()
    work = cache_root() / "pipeline" / "-".join(map(str, ["demo", *args.depths, args.rows, args.recorded]))
    work.mkdir(parents=True, exist_ok=True)
    texts = prepare(work, args.depths, args.rows, args.recorded)[: args.texts]
    with served(work, SERVE) as ready:
        loads = asyncio.run(measure(ready, work, args.depths, texts))
    args.out.mkdir(parents=True, exist_ok=True)
    result = {"loads": loads, "machine": machine()}
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + os.linesep)
    head = [
        "texts a second",
        "texts",
        "answered",
        "failed",
        "pieces",
        "right",
        "expected",
        "mean, ms",
        "p98, ms",
        "rows",
    ]
    rows = [
        [
            f"{one['rate']:g}" if one["rate"] else "one at a time",
            *(str(one[key]) for key in ("roots", "answered", "failed", "pieces")),
            *(f"{one[key]:.1%}" for key in ("accuracy", "accuracy_expected")),
            *(f"{one[key]:.1f}" for key in ("mean_ms", "p98_ms")),
            ", ".join(f"{count} {name}" for name, count in one["rows"].items()),
        ]
        for one in loads
    ]
    what = ["Descriptions of packages into sections, in pieces of 64 tokens; SLO 100 ms; one worker on a CPU."]
    write(args.out / "index.html", render("A pipeline on real texts", [table(head, rows)], what=what))
    for row in (head, *rows):
        print("  ".join(row))
    print(f"\n{args.out / 'result.json'}, {args.out / 'index.html'}")
    return 1 if any(one["answered"] + one["failed"] != one["roots"] for one in loads) else 0


if __name__ == "__main__":
    raise SystemExit(ended(main))
