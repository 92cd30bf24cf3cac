"""The documents flow, served: pages at several resolutions are sent as images, and what comes back is compared with
what stands on them.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from arlo.clock import monotonic_s
from arlo.control.gateway.admin import AdminClient
from benchmarks.flows.documents import sources
from benchmarks.flows.documents.record import SIDES, SQUEEZES, record

NAME = "documents"
STAGES = ("detect", "orient", "read", "manual")
OUTPUTS = ("read.text", "read.row", "manual.logits", "manual.row", "children", "accuracy_expected", "route", "reason")
DPIS = (60, 100, 150)
SERVE = """\
# Written by `make pipeline-demo`.
[pipeline]
flow = "flow.toml"
max_bytes = 67_108_864

[workers]
count = 1
run_dir = "run"

[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"

[control]
http_address = "127.0.0.1:0"
"""


def stage(name: str, variants: Sequence[tuple[str, float | None]], *, more: str = "") -> str:
    """A stage of the flow file; None: the accuracy is in the records."""
    lines = ["[[flow.stage]]", f'name = "{name}"', *([more] if more else [])]
    for repository, accuracy in variants:
        lines += ["[[flow.stage.variant]]", f'repository = "{repository}"']
        lines += [] if accuracy is None else [f"accuracy = {accuracy}"]
    return "\n".join(lines) + "\n"


def write_flow(work: Path, recorded: dict[str, Any], depths: Sequence[int]) -> float:
    """flow.toml and serve.toml; the SLO in ms: four times what a page takes alone by what was recorded."""
    slo_ms = round(4 * recorded["ms"])
    text = (
        f'[flow]\nname = "{NAME}"\nslo_ms = {slo_ms}\nrecords = "records"\nmax_children = 512\n'
        + stage("detect", [(f"detect-{side}", recorded["detect"][f"detect-{side}"]) for side in SIDES])
        + stage("orient", [("orient", recorded["orient"]["orient"])])
        + stage("read", [(f"read-{s:g}", recorded["read"][f"read-{s:g}"]) for s in SQUEEZES], more="told = true")
        + stage("manual", [(f"manual-{depth}", None) for depth in depths])
    )
    for tail, head, expand in (
        ("detect", "orient", f'factor = {recorded["lines"]:.1f}, max = 200, inputs = {{strip = "strips"}}'),
        ("orient", "read", 'inputs = {strip = "upright"}'),
    ):
        text += f'[[flow.edge]]\nfrom = "{tail}"\nto = "{head}"\nexpand = {{kind = "tensor", {expand}}}\n'
    text += '[[flow.edge]]\nfrom = "read"\nto = "manual"\njoin = "detect"\n'  # all lines of a page
    (work / "flow.toml").write_text(text)
    (work / "serve.toml").write_text(SERVE)
    return float(slo_ms)


async def prepared(
    work: Path, fetched: Path, pages: Sequence[sources.Page], depths: Sequence[int], say: Callable[[str], None]
) -> tuple[dict[str, Any], float]:
    """Repositories, records and the flow; what was recorded, and the SLO in ms."""
    kept = work / "records.json"
    recorded = json.loads(kept.read_text()) if kept.is_file() else await record(work, fetched, pages, say)
    return recorded, write_flow(work, recorded, depths)


class Truth:
    """Pages as images, and what is right about the answer to each."""

    def __init__(self, fetched: Path, pages: Sequence[sources.Page], labels: Sequence[str]) -> None:
        self.pages, self.labels = pages, labels
        self.images = {
            (number, dpi): sources.image_of(fetched, page, dpi) for number, page in enumerate(pages) for dpi in DPIS
        }

    def judge(self, number: int, answer: Any) -> tuple[float, int, int]:
        """Share of the letters that are right; lines; 1 where the right manual was told."""
        page = self.pages[number]
        lines = [line.decode() for line in answer.as_numpy("read.text").reshape(-1)]
        told = [self.labels[label] for label in answer.as_numpy("manual.logits").argmax(-1)]
        right = sources.characters_right(sources.plain(" ".join(lines)), sources.plain(page.text))
        return right, len(lines), int(told == [page.manual])


async def load(address: str, truth: Truth, rate: float, slo_ms: float) -> dict[str, Any]:
    """Every page at every resolution, once: one after the other, or at random moments, `rate` pages a second."""
    keys = sorted(truth.images)
    gaps = np.random.default_rng(1).exponential(1 / rate, len(keys)) if rate else np.zeros(len(keys))
    failed: Counter[str] = Counter()
    answers: dict[tuple[int, int], tuple[float, Any]] = {}
    async with triton.InferenceServerClient(address) as client:

        async def ask(key: tuple[int, int], at: float) -> None:
            await asyncio.sleep(max(0.0, at - monotonic_s()))
            begun = at if rate else monotonic_s()
            tensor = triton.InferInput("page", [1, 1], "BYTES")
            tensor.set_data_from_numpy(np.asarray([[truth.images[key]]], np.object_))
            wanted = [triton.InferRequestedOutput(name) for name in OUTPUTS]
            try:
                answer = await client.infer(NAME, [tensor], outputs=wanted)
            except InferenceServerException as error:
                failed[str(error.status())] += 1
                return
            answers[key] = 1000 * (monotonic_s() - begun), answer

        begun = monotonic_s()
        moments = zip(keys, begun + np.cumsum(gaps), strict=True)
        if rate:
            await asyncio.gather(*(ask(key, at) for key, at in moments))
        else:
            for key, at in moments:
                await ask(key, at)
    return _figures(truth, rate, slo_ms, answers, failed)


def _figures(
    truth: Truth, rate: float, slo_ms: float, answers: dict[tuple[int, int], tuple[float, Any]], failed: Counter[str]
) -> dict[str, Any]:
    judged = {key: truth.judge(key[0], answer) for key, (_, answer) in answers.items()}
    times = np.asarray([ms for ms, _ in answers.values()] or [float("nan")])
    lines = sum(count for _, count, _ in judged.values())

    def mean(values: Sequence[float]) -> float:
        return statistics.mean(values) if values else float("nan")

    return {
        "rate": rate,
        "roots": len(truth.images),
        "answered": len(answers),
        "failed": sum(failed.values()),
        "failures": dict(failed),
        "late": int((times > slo_ms).sum()),
        "lines": lines,
        "accuracy": mean([right for right, _, _ in judged.values()]),
        "accuracy_by_dpi": {dpi: mean([one[0] for key, one in judged.items() if key[1] == dpi]) for dpi in DPIS},
        "manual_right": mean([right for _, _, right in judged.values()]),
        "accuracy_expected": mean([float(one.as_numpy("accuracy_expected")[0]) for _, one in answers.values()]),
        "mean_ms": float(times.mean()),
        "p98_ms": float(np.quantile(times, 0.98)),
    }


async def counts_of(admin: str, variants: dict[str, Sequence[str]]) -> dict[str, dict[str, int]]:
    """Rows that each variant of each stage has answered so far, and what the stages gave up."""
    found: dict[str, dict[str, int]] = {}
    async with AdminClient(admin, model=NAME) as client:
        stages = {one.stage: one for one in (await client.stats()).pipeline}
    for name, names in variants.items():
        one = stages[name]
        said = [counts.answered for counts in one.variants] or [0] * len(names)  # none before the first page
        rows = dict(zip(names, said, strict=True))
        found[name] = {**rows, "rerouted": one.rerouted, "dropped": sum(one.dropped)}
    return found


async def measure(
    ready: dict[str, Any], truth: Truth, slo_ms: float, variants: dict[str, Sequence[str]], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The figures of each load, in turn: one at a time, and at 0.7 and 1.5 times that rate."""
    found: list[dict[str, Any]] = []
    alone_ms = 0.0
    before = await counts_of(ready["admin"], variants)
    for share in (0.0, 0.7, 1.5):
        rate = round(1000 / alone_ms * share, 3) if share else 0.0
        say(f"{len(truth.images)} pages " + (f"at {rate:g} a second" if rate else "one at a time"))
        one = await load(ready["grpc"], truth, rate, slo_ms)
        after = await counts_of(ready["admin"], variants)
        one["rows"] = {s: {name: after[s][name] - before[s][name] for name in after[s]} for s in after}
        alone_ms, before = alone_ms or one["mean_ms"], after
        found.append(one)
    return found
