"""Measured latencies for the simulator: a manifest of static runtimes, and the cost of packed batches.

packed.json has a fit of each bucket over row lengths n (see `about` in it), and the points. A graph computes its whole
bucket, so b is 0 unless half-filled buckets took less.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu import SHAPES, Cell
from benchmarks.gpu.report import PACKED_KINDS, STATIC_KINDS, Results

Latency = dict[tuple[int, int], float]  # length, rows -> milliseconds


def write(results: Results, folder: Path) -> None:
    """Write NAME/arlo.json for each shape, a manifest without engines. ImportError where Arlo is not installed."""
    facts = results.facts
    precision, device = "fp16" if facts.get("device") == "cuda" else "fp32", str(facts.get("name", "cpu"))
    for shape in results.shapes:
        if not (cells := results.cells(shape, STATIC_KINDS)):
            continue
        latency = {(cell["length"], cell["rows"]): time_ms(cell) for cell in cells}
        runtimes = [
            runtime(f"{shape}_len{n}", latency, max_length=n, max_batch=rows, precision=precision, device=device)
            for n, rows in dict(sorted(latency)).items()
        ]
        name = f"{shape}-{results.card.removeprefix('nvidia-')}-static"
        source = f"{shape} {precision}, CUDA graphs ({cells[0]['kind']}), {how(cells)}, measured by benchmarks.gpu"
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        manifest(name, shape, runtimes, f"{source}; no engines", str(facts.get("torch", ""))).save(place)
        raw = json.loads((place / "arlo.json").read_text())
        lines = ",\n".join("  " + json.dumps(each) for each in raw.pop("runtimes"))
        (place / "arlo.json").write_text(f'{json.dumps(raw)[:-1]},\n "runtimes": [\n{lines}\n ]}}\n')


def time_ms(cell: Cell) -> float:
    """The cell's time in ms, host to host if measured, else on the device."""
    return float(cell["host_ms" if "host_ms" in cell else "graph_ms"])


def how(cells: Sequence[Cell]) -> str:
    """The way `time_ms` of these cells was measured."""
    return "host to host" if all("host_ms" in cell for cell in cells) else "on the device"


def manifest(name: str, shape: str, runtimes: Sequence[Any], source: str = "", torch: str = "") -> Any:
    """A manifest of embeddings of this shape."""
    from arlo.catalog.manifest import InputTensor, Manifest, OutputTensor

    ids = InputTensor(name="input_ids", datatype="INT64", role="ids")
    mask = InputTensor(name="attention_mask", datatype="INT64", role="mask")
    output = OutputTensor(name="sentence_embedding", datatype="FP32", token_level=False, dims=(SHAPES[shape][1],))
    parts: dict[str, Any] = {"inputs": (ids, mask), "outputs": (output,), "runtimes": tuple(runtimes)}
    return Manifest(model=name, task="embedding", source=source, tokenizer=None, tools={"torch": torch}, **parts)


def runtime(name: str, latency: Latency, *, max_length: int, max_batch: int, dynamic: bool = False, **more: Any) -> Any:
    """A runtime of the torch engine. The latency of a static one is that of the next length that was measured."""
    from arlo.catalog.manifest import LatencyPoint, Runtime

    measured = min(length for length, _ in latency if length >= max_length)
    points = [
        LatencyPoint(length=length if dynamic else max_length, batch=rows, latency_us=max(1, round(1000 * ms)))
        for (length, rows), ms in sorted(latency.items())
        if rows <= max_batch and (dynamic or length == measured)
    ]
    more |= {"max_length": max_length, "max_batch": max_batch, "dynamic": dynamic}
    return Runtime(name=name, engine="torch", latency=tuple(points), **more)


def costs(results: Results) -> str:
    """packed.json; empty where nothing was measured."""
    about = "us = a + b * sum(n) + c * sum(n^2), by bucket; points: bucket, rows, sum(n), sum(n^2), us"
    found: dict[str, Any] = {"about": about}
    for shape in results.shapes:
        if cells := [cell for cell in results.cells(shape, PACKED_KINDS) if "squares" in cell]:
            found[shape] = packed(cells)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    return f"{{\n{lines}\n}}\n" if len(found) > 1 else ""


def packed(cells: Sequence[Cell]) -> dict[str, Any]:
    """The points of one shape and kind, and their fit."""
    points = [[c["tokens"], c["rows"], c["live"], c["squares"], round(1000 * time_ms(c))] for c in cells]
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
    for more in [(), (1,), (2,), (1, 2)] if varied else [(), (2,)]:
        chosen, found = [0, *more], np.zeros(3)
        if len(chosen) <= len(points):
            found[chosen] = np.linalg.lstsq(columns[:, chosen], times, rcond=None)[0]
            error = float(np.square(columns @ found - times).sum())
            if (found >= 0).all() and error < 0.999 * least:
                best, least = found, error
    return float(best[0]), float(best[1]), float(best[2])
