"""The repositories of the four stages, and what each variant does on pages of known text, on a real worker: how many
letters are right, and how long it takes. What was counted is kept beside the repositories, page by page.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton

from arlo.catalog.joined import joined, link
from arlo.catalog.wrapped import wrap
from arlo.clock import monotonic_s
from arlo.workers import LocalPool
from benchmarks.flows.documents import sources

SIDES = (640, 960)  # of the pages that the detector sees
SQUEEZES = (1.0, 1.25)  # of the lines that are read
STRIPS = 4  # in a batch
HEIGHT = 48  # of a strip, as the model code has it
LONGEST = 1600
DPI = 100  # of the pages that are counted on

DETECT = [("input", "page", "BYTES", "[1]", ""), ("output", "count", "INT32", "[1]", "on_request = true"),
          ("output", "strips", "BYTES", "[1]", "of_children = true"),
          ("output", "boxes", "INT32", "[4]", "of_children = true")]  # fmt: skip
STRIP = ("input", "strip", "UINT8", f"[-1, {HEIGHT}]", "pad_value = 128")
ORIENT = [STRIP, ("output", "logits", "FP32", "[2]", ""), ("output", "upright", "BYTES", "[1]", "")]
READ = [STRIP, ("output", "text", "BYTES", "[1]", ""), ("output", "confidence", "FP32", "[1]", "")]

# Name -> code, tensors, rows of a batch, parameter.
VARIANTS: dict[str, tuple[str, list[tuple[str, str, str, str, str]], int, str]] = {
    **{f"detect-{side}": ("detect", DETECT, 1, f'side = "{side}"\nlongest = "{LONGEST}"') for side in SIDES},
    "orient": ("orient", ORIENT, STRIPS, ""),
    **{f"read-{squeeze:g}": ("read", READ, STRIPS, f'squeeze = "{squeeze}"') for squeeze in SQUEEZES},
}

Latency = Sequence[tuple[int, int, float]]


def write_variant(name: str, work: Path, fetched: Path, latency: Latency = ()) -> Any:
    """The repository of a variant; its manifest."""
    code, tensors, rows, parameter = VARIANTS[name]
    here = Path(__file__).parent
    network = fetched / "rapidocr-onnxruntime" / sources.MODELS / sources.NETWORKS[code]
    lines = ["[model]", f'name = "{name}"', f"max_batch = {rows}"]
    lines.append(f'files = {{"model.py" = "{here / (code + ".py")}", "model.onnx" = "{network}"}}')
    lines.append(f"latency = {[list(point) for point in latency] or [[1, 1, 1]]}")
    lines += ['counts = "count"'] if code == "detect" else [f"max_length = {LONGEST}"]
    lines += ['labels = ["0", "180"]'] if code == "orient" else []
    lines += ["[parameters]", parameter]
    for kind, tensor, datatype, dims, more in tensors:
        lines += [f"[[{kind}]]", f'name = "{tensor}"', f'datatype = "{datatype}"', f"dims = {dims}", more]
    (work / f"{name}.toml").write_text("\n".join(lines) + "\n")
    return wrap(work / f"{name}.toml", work / name)


class Stage:
    """Calls of one variant on the worker, and how long they took."""

    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name = client, name
        self.times: dict[tuple[int, int], list[float]] = {}  # (length, rows) -> ms

    async def __call__(self, array: Any, datatype: str, length: int) -> Any:
        tensor = triton.InferInput(VARIANTS[self._name][1][0][1], array.shape, datatype)
        tensor.set_data_from_numpy(array)
        begun = monotonic_s()
        answer = await self._client.infer(self._name, [tensor])
        self.times.setdefault((length, len(array)), []).append(1000 * (monotonic_s() - begun))
        return answer

    def latency(self, lengths: Sequence[int]) -> Latency:
        """Medians at these lengths, of one row and of as many as there were; longer ones never quicker."""
        found: list[tuple[int, int, float]] = []
        for rows in sorted({rows for _, rows in self.times}):
            most = 0.1
            for length in lengths:
                most = max(most, statistics.median(self.times[length, rows]))
                found.append((length, rows, round(most, 3)))
        return found


def batch_of(strips: Sequence[bytes], width: int) -> Any:
    """Strips side by side, filled up to a width; longer ones are cut."""
    out = np.full((len(strips), width, HEIGHT), 128, np.uint8)
    for row, strip in zip(out, strips, strict=True):
        columns = np.frombuffer(strip, np.uint8).reshape(-1, HEIGHT)[:width]
        row[: len(columns)] = columns
    return out


async def record(
    work: Path, fetched: Path, pages: Sequence[sources.Page], say: Callable[[str], None]
) -> dict[str, Any]:
    """Runs every variant on the pages and writes all repositories anew with their latencies.

    Returns `pages` (accuracy by "detect read"), `detect` and `read` (accuracy of each variant), `ms` of a page alone.
    """
    manifests = [write_variant(name, work, fetched) for name in VARIANTS]
    folder = link([work / name for name in VARIANTS], joined(manifests), work)
    counted: list[dict[str, Any]] = []
    lines: list[int] = []
    upright: list[bool] = []
    async with LocalPool(folder, workers=1, run_dir=work / "record", metrics=False, threads=1) as pool:
        (worker,) = await pool.workers()
        for name in VARIANTS:
            await pool.load(worker.id, name)
        async with triton.InferenceServerClient(worker.endpoint) as client:
            stages = {name: Stage(client, name) for name in VARIANTS}
            for page in pages:
                say(f"page {page.number} of {page.manual}, with every variant")
                image = np.asarray([[sources.image_of(fetched, page, DPI)]], np.object_)
                one: dict[str, Any] = {"manual": page.manual, "page": page.number, "right": {}}
                for side in SIDES:
                    found = await stages[f"detect-{side}"](image, "BYTES", 1)
                    strips = found.as_numpy("strips").reshape(-1).tolist()
                    lines.append(len(strips))
                    if side == SIDES[-1]:
                        for strip in strips:
                            said = await stages["orient"](batch_of([strip], max(len(strip) // HEIGHT, 1)), "UINT8", 0)
                            upright.append(said.as_numpy("upright").reshape(-1)[0] == strip)
                    for squeeze in SQUEEZES:
                        texts = [await _read(stages, f"read-{squeeze:g}", strip) for strip in strips]
                        one["right"][f"{side} {squeeze:g}"] = sources.characters_right(
                            sources.plain(" ".join(texts)), sources.plain(page.text)
                        )
                counted.append(one)
            lengths = (400, 800, LONGEST)
            for name in [name for name in VARIANTS if not name.startswith("detect")]:
                stages[name].times.clear()
                for length in lengths:
                    for rows in (1, STRIPS) * 3:
                        await stages[name](batch_of(strips[:1] * rows, length), "UINT8", length)
    for name, stage in stages.items():
        write_variant(name, work, fetched, stage.latency([1] if name.startswith("detect") else lengths))
    result = _summary(counted)
    alone = {name: stage.latency([1] if name.startswith("detect") else lengths)[0][2] for name, stage in stages.items()}
    fan_out = statistics.mean(lines)
    full = {name: stage.latency(lengths)[2][2] for name, stage in stages.items() if not name.startswith("detect")}
    result["lines"] = fan_out
    result["orient"] = {"orient": round(statistics.mean(upright), 4)}
    result["ms"] = alone[f"detect-{SIDES[-1]}"] + fan_out * (full["orient"] + full[f"read-{SQUEEZES[0]:g}"])
    (work / "records.json").write_text(json.dumps(result, indent=1) + "\n")
    return result


async def _read(stages: dict[str, Stage], name: str, strip: bytes) -> str:
    array = batch_of([strip], max(len(strip) // HEIGHT, 1))
    answer = await stages[name](array, "UINT8", 0)
    return str(answer.as_numpy("text").reshape(-1)[0].decode())


def _summary(counted: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def mean(key: str) -> float:
        return float(statistics.mean(one["right"][key] for one in counted))

    best = f"{SIDES[-1]} {SQUEEZES[0]:g}"
    return {
        "dpi": DPI,
        "pages": list(counted),
        "detect": {f"detect-{side}": round(mean(f"{side} {SQUEEZES[0]:g}"), 4) for side in SIDES},
        "read": {f"read-{s:g}": round(min(mean(f"{SIDES[-1]} {s:g}") / mean(best), 1.0), 4) for s in SQUEEZES},
    }
