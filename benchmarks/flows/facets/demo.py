"""The facets flow of `make pipeline-demo`, from lists of packages to figures.

    python -m benchmarks.flows.facets.demo [--texts 400] [--out reports/pipeline/facets.json]

    description --> section (1 layer) --unsure, and it pays--> again (2 layers): both answers mixed
                         |
                         +--a section of programs--> facets: interface and use, two heads on one body

Whether a row goes on to `again` depends on how sure the first answer is and on what time costs: gains by confidence are
counted on texts that no model was trained on, so is the temperature. What the second answer would bring too late, the
first one stands for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from tokenizers import Tokenizer

from arlo.catalog.flow_outcomes import Outcomes
from arlo.compile.cache import Entry
from arlo.control.gateway.admin import AdminClient
from arlo.errors import ArloError
from benchmarks.cascade.cached import cache_root, open_cache
from benchmarks.flows import pipeline_demo
from benchmarks.flows.facets import data
from benchmarks.flows.load import send
from benchmarks.harness import machine

NAME = "facets"
DEPTH = 1  # layers below the heads of the facets
RECORDED = 1200  # texts that accuracies and gains are counted on
SLO_MS = 150
MAX_TOKENS = 128
OUTPUTS = (
    "section.logits", "again.logits", "again.row", "facets.logits", "facets.row", "accuracy_expected", "reason",
)  # fmt: skip
FLOW = """\
# Written by `make pipeline-demo`.
[flow]
name = "{name}"
slo_ms = {slo}
records = "records"
[[flow.stage]]
name = "section"
told = true
variants = ["{section}"]
[[flow.stage]]
name = "again"
variants = ["{again}"]
[[flow.stage]]
name = "facets"
variants = [{{repository = "facets-{depth}", accuracy = {accuracy:.4f}}}]
[[flow.edge]]
from = "section"
to = "again"
when = {{score = "calibrated_max", below = "price"}}
answer = {{ensemble = "weighted", weights = {weights}}}
[[flow.edge]]
from = "section"
to = "facets"
when = {{label_in = {sections}}}
"""


def say(text: str) -> None:
    print(f"pipeline-demo: facets: {text}", file=sys.stderr, flush=True)


def prepare(work: Path, depths: Sequence[int], rows: int) -> Entry:
    """Engines, records and the flow; the data. The models of sections are those of the pieces."""
    root, command = cache_root(), pipeline_demo.command
    say("data and the model of facets")
    found = data.data_step(root)
    model = data.model_step(open_cache(root), found, DEPTH, say)
    say("models of sections")  # those of the pieces, where these were trained before
    command("benchmarks.cascade.sections")
    made = ["--rows", str(rows), "--max-tokens", str(pipeline_demo.MAX_TOKENS)]
    command("benchmarks.cascade.train", "--data", "sections", "--depths", *map(str, depths), *made)
    stages = [f"whole-{depth}" for depth in depths]
    folders = [root / "cascade" / f"sections-l{depth}-{rows}" for depth in depths]
    options = ["--lengths", "64,128", "--max-batch", "4", "--no-dynamic"]
    for name, folder in zip([*stages, f"facets-{DEPTH}"], [*folders, model.folder], strict=True):
        command("arlo.cli", "compile", folder / "model.onnx", "--out", work / name, "--name", name, *options)
    say("what the models of sections make of texts that they were not trained on")
    select = work / "select.jsonl"
    known = set(json.loads((work / stages[0] / "arlo.json").read_text())["labels"])
    mine = [one for one in data.read(found, "select") if one["label"] in known][:RECORDED]
    select.write_text("".join(json.dumps({"text": o["text"], "label": o["label"]}) + "\n" for o in mine))
    command("arlo.cli", "accuracy", *(work / name for name in stages), "--data", select, "--out", work / "records")
    said = Outcomes.load(work / "records").variants
    sections = [name for name in data.SECTIONS if name in known]
    text = FLOW.format(
        name=NAME,
        slo=SLO_MS,
        section=stages[0],
        again=stages[1],
        depth=DEPTH,
        accuracy=float(np.mean(list(model.meta["accuracy"].values()))),
        weights=[round(float(said[name].correct.mean()), 4) for name in stages],  # Tabi Eq. 6
        sections=json.dumps(sections),
    )
    (work / "flow.toml").write_text(text)
    (work / "serve.toml").write_text(pipeline_demo.SERVE.replace('window = 64\npool = "mean"\n', ""))
    return found


async def counts_of(admin: str) -> dict[str, dict[str, int]]:
    """Rows that each stage has answered so far, what it gave up, and what came to it."""
    async with AdminClient(admin, model=NAME) as client:
        stages = (await client.stats()).pipeline
    return {
        one.stage: {"arrived": one.arrived, "answered": one.answered, "dropped": sum(one.dropped)} for one in stages
    }


def kill_worker(work: Path) -> None:
    os.kill(json.loads((work / "run" / "w0.process.json").read_text())["pid"], signal.SIGKILL)


async def measure(ready: dict[str, Any], work: Path, texts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures of each load, in turn: one at a time, at 0.5 and 1.5 times that rate, and at 0.5 times while the only
    worker is killed and comes back."""
    repository = next(work.glob("whole-*"))
    labels = json.loads((repository / "arlo.json").read_text())["labels"]

    def judge(one: dict[str, Any], answer: Mapping[str, Any]) -> dict[str, float]:
        first, again = np.asarray(answer["section.logits"]), np.asarray(answer["again.logits"])
        said = (again if len(again) else first)[0]
        facets = np.asarray(answer["facets.logits"])
        right = data.told_right(facets[0], one["facets"]) if len(facets) else {}
        found: dict[str, float] = {
            "right": labels[int(said.argmax())] == one["label"],
            "first_right": labels[int(first[0].argmax())] == one["label"],
            "again": len(again),
            "expected": float(np.asarray(answer["accuracy_expected"]).sum()),
            "degraded": float((np.asarray(answer["reason"]) > 0).sum()),
        }
        for facet, good in right.items():
            found[f"{facet}_known"], found[f"{facet}_right"] = 1, good
        return found

    found: list[dict[str, Any]] = []
    before, alone_ms = await counts_of(ready["admin"]), 0.0
    tokenizer = Tokenizer.from_file(str(repository / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=MAX_TOKENS)
    wanted = [triton.InferRequestedOutput(name) for name in OUTPUTS]
    async with triton.InferenceServerClient(ready["grpc"]) as client:

        async def ask(text: str) -> Mapping[str, Any]:
            ids = np.asarray([tokenizer.encode(text).ids], np.int64)
            inputs = []
            for name, array in (("input_ids", ids), ("attention_mask", np.ones_like(ids))):
                inputs.append(triton.InferInput(name, list(array.shape), "INT64"))
                inputs[-1].set_data_from_numpy(array)
            answer = await client.infer(NAME, inputs, outputs=wanted)
            return {name: answer.as_numpy(name) for name in OUTPUTS}

        for share, killed in ((0.0, False), (0.5, False), (1.5, False), (0.5, True)):
            rate = round(1000 / alone_ms * share, 1) if share else 0.0
            at = f"at {rate:g} a second" if rate else "one at a time"
            say(f"{len(texts)} texts {at}{', the worker is killed halfway' if killed else ''}")
            if killed:
                asyncio.get_running_loop().call_later(0.5 * len(texts) / rate, kill_worker, work)
            one = await send(ask, texts, rate, judge) | {"killed": killed}
            after = await counts_of(ready["admin"])
            sums, count = one.pop("sums"), max(one["answered"], 1)
            one["rows"] = {s: {key: after[s][key] - before[s].get(key, 0) for key in after[s]} for s in after}
            one["again"], one["degraded"] = sums.get("again", 0), sums.get("degraded", 0)
            one["accuracy"], one["first_right"] = (sums.get(key, 0) / count for key in ("right", "first_right"))
            one["accuracy_expected"] = sums.get("expected", 0) / count
            for facet in data.FACETS:
                known = sums.get(f"{facet}_known", 0)
                one[facet] = {"known": known, "right": sums.get(f"{facet}_right", 0) / max(known, 1)}
            alone_ms, before = alone_ms or one["mean_ms"], after
            found.append(one)
    return found


def run(depths: Sequence[int], rows: int, count: int) -> dict[str, Any]:
    """The figures of the flow. ArloError where something is missing."""
    work = cache_root() / "pipeline" / "-".join(map(str, [NAME, *depths, rows]))
    work.mkdir(parents=True, exist_ok=True)
    found = prepare(work, depths, rows)
    texts = data.read(found, "test")[:count]
    with pipeline_demo.served(work) as ready:
        loads = asyncio.run(measure(ready, work, texts))
    usual = {key: value for key, value in loads[1].items() if key != "rows"}
    return {**usual, "slo_ms": SLO_MS, "stages": loads[1]["rows"], "loads": loads}


HEAD = [
    "texts a second", "texts", "answered", "failed", "sections right", "by the first model", "told again", "degraded",
    "interfaces right", "uses right", "mean, ms", "p98, ms", "rows",
]  # fmt: skip


def rows_of(result: dict[str, Any]) -> list[list[str]]:
    """The figures as a table."""
    return [
        [
            (f"{one['rate']:g}" if one["rate"] else "one at a time") + (", worker killed" if one["killed"] else ""),
            *(str(one[key]) for key in ("roots", "answered", "failed")),
            *(f"{one[key]:.1%}" for key in ("accuracy", "first_right")),
            *(f"{one[key]:.0f}" for key in ("again", "degraded")),
            *(f"{one[facet]['right']:.1%} of {one[facet]['known']:.0f}" for facet in data.FACETS),
            *(f"{one[key]:.1f}" for key in ("mean_ms", "p98_ms")),
            ", ".join(f"{counts['answered']} {name}" for name, counts in one["rows"].items()),
        ]
        for one in result["loads"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs=2, default=[1, 2], help="layers of the two models (default: 1 2)")
    parser.add_argument("--rows", type=int, default=8000, help="texts that they were trained with (default: 8000)")
    parser.add_argument("--texts", type=int, default=400, help="that are sent in each load (default: 400)")
    parser.add_argument("--out", type=Path, default=Path("reports/pipeline/facets.json"))
    args = parser.parse_args()
    try:
        result = run(args.depths, args.rows, args.texts)
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
