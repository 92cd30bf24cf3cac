"""Measured latencies for the simulator: a manifest of static runtimes, and the cost of packed batches.

packed.json holds for each shape the fit `us = a + b * sum(n) + c * sum(n^2)` of each bucket over row lengths n, and the
points. A graph computes its whole bucket, so b is 0 unless half-filled buckets took less.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.report import PACKED_KINDS, STATIC_KINDS, Cell, Results

WIDTHS = {"bert-base": 768, "bert-large": 1024, "minilm-l6": 384, "tiny": 64}


def write(results: Results, folder: Path) -> list[str]:
    """Write what the table suffices for; returns a line for each file that could not be written."""
    costs, problems = [], []
    for shape in results.shapes():
        if cells := [cell for cell in results.cells(shape, PACKED_KINDS) if "squares" in cell]:
            costs.append(f' "{shape}": {json.dumps(packed(cells))}')
        if cells := results.cells(shape, STATIC_KINDS):
            name = f"{shape}-{results.card.removeprefix('nvidia-')}-static"
            try:
                _save(static(results, name, cells), folder / "profiles" / name)
            except ImportError as error:
                problems.append(f"{name} was not written, as Arlo is not installed here: {error}")
    if costs:
        about = "us = a + b * sum(n) + c * sum(n^2), by bucket; points: bucket, rows, sum(n), sum(n^2), us"
        (folder / "packed.json").write_text(",\n".join([f'{{\n "about": {json.dumps(about)}', *costs]) + "\n}\n")
    return problems


def time_us(cell: Cell) -> int:
    """Host to host where that was measured, else on the device."""
    return max(1, round(1000 * float(cell["host_ms" if "host_ms" in cell else "graph_ms"])))


def how(cells: Sequence[Cell]) -> str:
    """What `time_us` is of these cells."""
    return "host to host" if all("host_ms" in cell for cell in cells) else "on the device"


def manifest(name: str, shape: str, runtimes: Sequence[Any], source: str = "", torch: str = "") -> Any:
    """A manifest of embeddings of this shape."""
    from arlo.catalog.manifest import InputTensor, Manifest, OutputTensor

    ids = InputTensor(name="input_ids", datatype="INT64", role="ids")
    mask = InputTensor(name="attention_mask", datatype="INT64", role="mask")
    output = OutputTensor(name="sentence_embedding", datatype="FP32", token_level=False, dims=(WIDTHS[shape],))
    return Manifest(
        model=name,
        task="embedding",
        source=source,
        tokenizer=None,
        inputs=(ids, mask),
        outputs=(output,),
        runtimes=tuple(runtimes),
        tools={"torch": torch},
    )


def static(results: Results, name: str, cells: Sequence[Cell]) -> Any:
    """A manifest of cells of one shape and kind; it has no engines."""
    from arlo.catalog.manifest import LatencyPoint, Runtime

    shape, kind, facts = cells[0]["shape"], cells[0]["kind"], results.facts
    precision, runtimes = "fp16" if facts.get("device") == "cuda" else "fp32", []
    common: dict[str, Any] = {"dynamic": False, "engine": "torch", "device": str(facts.get("name", "cpu"))}
    for length in sorted({cell["length"] for cell in cells}):
        points = sorted((cell["rows"], time_us(cell)) for cell in cells if cell["length"] == length)
        latency = tuple(LatencyPoint(length=length, batch=rows, latency_us=us) for rows, us in points)
        sizes: dict[str, Any] = {"max_length": length, "max_batch": points[-1][0], "latency": latency}
        runtimes.append(Runtime(name=f"{shape}_len{length}", precision=precision, **sizes, **common))
    source = f"{shape} {precision}, CUDA graphs ({kind}), {how(cells)}, measured by benchmarks.gpu; no engines"
    return manifest(name, shape, runtimes, source, str(facts.get("torch", "")))


def _save(found: Any, place: Path) -> None:
    """arlo.json with a runtime on each line."""
    place.mkdir(parents=True, exist_ok=True)
    found.save(place)
    raw = json.loads((place / "arlo.json").read_text())
    runtimes = ",\n".join("  " + json.dumps(each) for each in raw.pop("runtimes"))
    (place / "arlo.json").write_text(f'{json.dumps(raw)[:-1]},\n "runtimes": [\n{runtimes}\n ]}}\n')


def packed(cells: Sequence[Cell]) -> dict[str, Any]:
    """The points of one shape and kind, and their fit."""
    points = [[c["tokens"], c["rows"], c["live"], c["squares"], time_us(c)] for c in cells]
    fits, error = {}, 0.0
    for bucket in sorted({point[0] for point in points}):
        here = [point for point in points if point[0] == bucket]
        a, b, c = fit(here)
        fits[str(bucket)] = [float(f"{value:.4g}") for value in (a, b, c)]
        error = max(error, *(abs(a + b * n + c * s - us) / us for _, _, n, s, us in here))
    return {"kind": cells[0]["kind"], "time": how(cells), "error": round(error, 4), "fit": fits, "points": points}


def fit(points: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """a, b, c, none below 0, with the least squares; b only where buckets were filled to different degrees."""
    columns = np.array([[1.0, n, s] for _, _, n, s, _ in points])
    times = np.array([us for *_, us in points], np.float64)
    varied = columns[:, 1].max() > 1.2 * columns[:, 1].min()
    best, least = np.zeros(3), np.inf
    for more in itertools.chain.from_iterable(itertools.combinations((1, 2) if varied else (2,), k) for k in range(3)):
        chosen, found = [0, *more], np.zeros(3)
        if len(chosen) <= len(points):
            found[chosen] = np.linalg.lstsq(columns[:, chosen], times, rcond=None)[0]
            error = float(np.square(columns @ found - times).sum())
            if (found >= 0).all() and error < 0.999 * least:
                best, least = found, error
    return float(best[0]), float(best[1]), float(best[2])
