"""Latency profiles of a result, as `arlo simulate --profile` and `--latency-profile` read them.

profiles/<model>-<precision>-<backend>/
    arlo.json             a manifest without engines: for the simulator and the planner
    latency_profile.json  the same points with their spread, as `arlo profile` writes them
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import InputTensor, LatencyPoint, Manifest, OutputTensor, Runtime
from benchmarks.gpu.plan import Shape
from benchmarks.gpu.results import Group, Results
from benchmarks.gpu.store import Record

FILE = "latency_profile.json"
_WIDTH = {"bert-base": 768, "bert-large": 1024, "minilm": 384}


def write_profiles(results: Results, folder: Path) -> tuple[list[Path], str]:
    """Write one folder for each back-end that has static runtimes; the second value says what could not be written."""
    written, problem = [], ""
    for group in results.groups():
        records = {shape: _records(results, group, shape) for shape in ("static", "dynamic")}
        if not records["static"]:
            continue
        place = folder / "profiles" / f"{group.model}-{group.precision}-{group.backend}"
        place.mkdir(parents=True, exist_ok=True)
        found = manifest(results, group, records["static"], records["dynamic"])
        found.save(place)
        written.append(place)
        try:
            _save_profile(results, group, found, records["static"] + records["dynamic"], place / FILE)
        except ImportError as error:
            problem = (
                f"{FILE} was not written, as Arlo is not installed here ({error}): "
                "run `python -m benchmarks.gpu --report FOLDER` where it is"
            )
    return written, problem


def _records(results: Results, group: Group, shape: Shape) -> list[Record]:
    name = group.names.get(shape)
    return [
        record
        for record in results.records
        if (record["model"], record["precision"], record["contender"]) == (group.model, group.precision, name)
        and "whole" in record
        and not record["wrong"]
    ]


def manifest(results: Results, group: Group, static: list[Record], dynamic: list[Record]) -> Manifest:
    """A manifest of these runtimes; their latency is that of the whole call, host to host, as a worker sees it."""
    device = f"{results.header['machine']['kind']}: {results.header['machine']['name']}"
    by_length: dict[int, list[Record]] = {}
    for record in static:
        by_length.setdefault(record["length"], []).append(record)
    runtimes = [
        _runtime(group, f"{group.model}_len{length}", length, records, device, dynamic=False)
        for length, records in sorted(by_length.items())
    ]
    if dynamic:
        longest = max(record["length"] for record in dynamic)
        runtimes.append(_runtime(group, f"{group.model}_dynamic", longest, dynamic, device, dynamic=True))
    return Manifest(
        model=group.model,
        task="embedding",
        source=f"{group.title}, measured by benchmarks.gpu; there are no engines beside this file",
        tokenizer=None,
        inputs=(
            InputTensor(name="input_ids", datatype="INT64", role="ids"),
            InputTensor(name="attention_mask", datatype="INT64", role="mask"),
        ),
        outputs=(
            OutputTensor(name="sentence_embedding", datatype="FP32", token_level=False, dims=(_WIDTH[group.model],)),
        ),
        runtimes=tuple(runtimes),
        tools=dict(results.header["machine"]["versions"]),
    )


def _runtime(group: Group, name: str, length: int, records: list[Record], device: str, *, dynamic: bool) -> Runtime:
    points = sorted((r["length"], r["batch"], max(1, round(r["whole"]["median_us"]))) for r in records)
    return Runtime(
        name=name,
        max_length=length,
        max_batch=max(batch for _, batch, _ in points),
        dynamic=dynamic,
        engine=group.backend,
        precision=group.precision,
        device=device,
        latency=tuple(LatencyPoint(length=at, batch=batch, latency_us=us) for at, batch, us in points),
    )


def _save_profile(results: Results, group: Group, found: Manifest, records: list[Record], path: Path) -> None:
    from arlo.profiler.format import How, LatencyProfile, RuntimeProfile, runtime_hash

    names = set(group.names.values())
    at = datetime.datetime.fromtimestamp(max(record["at"] for record in records), datetime.UTC)
    options: dict[str, Any] = results.header["options"]
    profile = LatencyProfile(
        model=group.model,
        device=found.runtimes[0].device,
        versions=dict(found.tools),
        date=at.isoformat(timespec="seconds"),
        provenance=f"measured in one process by benchmarks.gpu, without Triton ({', '.join(sorted(names))})",
        how=How(
            confidence=0.95,
            precision=1.0,  # the repetitions are given, not the width
            max_seconds=float(options["cell_s"]),
            threads=int(options["threads"]) if results.header["machine"]["kind"] == "cpu" else None,
            outputs=("sentence_embedding",),
            method="contenders in turns, one batch at a time, from host memory to host memory",
        ),
        runtimes=tuple(
            RuntimeProfile(
                name=runtime.name,
                hash=runtime_hash(runtime),
                max_length=runtime.max_length,
                max_batch=runtime.max_batch,
                dynamic=runtime.dynamic,
                points=tuple(_points(results, group, runtime, records)),
            )
            for runtime in found.runtimes
        ),
    )
    profile.save(path)


def _points(results: Results, group: Group, runtime: Runtime, records: list[Record]) -> list[Any]:
    from arlo.profiler.format import Point

    name = group.names["dynamic" if runtime.dynamic else "static"]
    points = [
        Point(
            length=record["length"],
            batch=record["batch"],
            mean_us=record["whole"]["mean_us"],
            p50_us=record["whole"]["median_us"],
            p98_us=record["whole"]["p98_us"],
            samples=record["whole"]["runs"],
            half_width_us=record["whole"]["half_width_us"],
            compute_us=None if record["compute"] is None else record["compute"]["mean_us"],
            other_load=record["state"].get("other_load"),
        )
        for record in records
        if record["contender"] == name and (runtime.dynamic or record["length"] == runtime.max_length)
    ]
    return sorted(points, key=lambda point: (point.length, point.batch))
