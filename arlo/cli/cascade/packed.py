"""`arlo cascade plan --memory-mb`: which stages go on which worker, in how many replicas, for which batches."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arlo.catalog.manifest import Manifest, Runtime
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.decide import Ints
    from arlo.cascade.study import Study
    from arlo.planning.replicas import Line, StageNeeds

MOST_REPLICAS = 8  # of a stage
MOST_PLANS = 300_000  # combinations of batch, replicas and spans
BYTES = {"INT64": 8, "INT32": 4, "fp16": 2, "bf16": 2}  # of a value; 4 of any other precision


def found(args: argparse.Namespace, test: Study, stages: Any, chosen: dict[str, Any] | None) -> dict[str, Any]:
    """At the chosen point, else the default one (HybridServe Algorithm 3): by memory of all runtimes of a stage, by
    time at the reach and the lengths of the test split, with as little as can be between workers."""
    from arlo.planning.packing import Device, transfers
    from arlo.planning.replicas import plan

    cascade = test.cascade
    names = {point.name for point in cascade.points}
    point = cascade.point(chosen["point"] if chosen is not None and chosen["point"] in names else None)
    folder = args.cascade if args.cascade.is_dir() else args.cascade.parent
    needs = [
        _needs(folder / stage.repository, runtimes, test.length, reach=reach, width=args.width)
        for stage, runtimes, reach in zip(cascade.stages, stages, point.reach, strict=True)
    ]
    devices = [Device(float(args.memory_mb))] * args.workers
    largest = max(each.max_batch for each in needs)
    batches = [1]
    while batches[-1] < largest:
        batches.append(min(2 * batches[-1], largest))
    most = min(args.workers, MOST_REPLICAS)
    while most > 2 and len(batches) * (most * min(args.span, args.workers)) ** len(needs) > MOST_PLANS:
        most -= 1
    if len(batches) * (most * min(args.span, args.workers)) ** len(needs) > MOST_PLANS:
        raise ConfigError(
            f"--span {args.span} with {args.workers} workers and {len(needs)} stages are too many packings to try: "
            "give a smaller --span"
        )
    made = plan(
        needs,
        devices,
        rate=args.rate / 1000,
        transfer=transfers(devices, near=1.0, far=10.0),
        as_printed=args.transfer == "paper",
        batches=batches,
        most=most,
        most_span=args.span,
        slo_ms=args.slo_ms,
        cap=args.utilisation,
    )
    workers: list[list[str]] = [[] for _ in devices]
    for at, device in zip(made.parts, made.packing.device, strict=True) if made is not None else ():
        span = made.spans[at.stage] if made is not None else 1
        part = f" {at.part + 1}/{span}" if span > 1 else ""
        workers[device].append(cascade.stages[at.stage].name + part)
    return {
        "point": point.name,
        "batch": made.batch if made is not None else None,
        "replicas": list(made.replicas) if made is not None else None,
        "spans": list(made.spans) if made is not None else None,
        "rows_per_s": made.carries * 1000 if made is not None else None,
        "of_replicas_per_s": made.rate * 1000 if made is not None else None,
        "ms": made.ms if made is not None else None,
        "transfer": made.packing.transfer if made is not None else None,
        "workers": workers,
        "stages": [_told(each, made.batch if made is not None else 1) for each in needs],
        "all_fit": sum(each.memory_mb.at(each.max_batch) for each in needs) <= args.memory_mb,
    }


def _told(needs: StageNeeds, batch: int) -> dict[str, float]:
    """What a stage takes for b rows."""
    rows = needs.rows(batch)
    return {
        "reach": needs.reach,
        "rows": needs.reach * batch,
        "ms": needs.ms.at(rows),
        "ms_fixed": needs.ms.fixed,
        "ms_per_row": needs.ms.per_row,
        "memory_mb": needs.memory_mb.at(rows),
    }


def _needs(repository: Path, runtimes: Sequence[Any], length: Ints, *, reach: float, width: int) -> StageNeeds:
    from arlo.planning.replicas import Line, StageNeeds, fitted

    manifest = Manifest.load(repository)
    most = max(runtime.max_batch for runtime in runtimes)
    measured = {1} | {rows for runtime in runtimes for _, rows, _ in runtime.points if rows <= most}
    ends = np.asarray([runtime.max_length for runtime in runtimes])
    at = np.minimum(np.searchsorted(ends, length), len(ends) - 1)  # the shortest that takes the row

    def mean_ms(rows: int) -> float:
        return float(np.asarray([runtime.latency_ns(rows) / 1e6 for runtime in runtimes])[at].mean())

    precision = BYTES.get(manifest.runtimes[0].precision, 4)
    ids = sum(BYTES.get(tensor.datatype, 4) for tensor in manifest.inputs if tensor.role != "tensor") or precision
    return StageNeeds(
        reach=reach,
        ms=fitted([(rows, mean_ms(rows)) for rows in sorted(measured)]),
        memory_mb=_memory(manifest.runtimes, repository, most),
        max_batch=most,
        hidden=Line(0.0, width * precision / ids),
    )


def _memory(runtimes: Sequence[Runtime], repository: Path, most: int) -> Line:
    """Of all runtimes of a stage, by the largest batch that they are built for. `arlo compile` has measured what each
    takes at its own; a token more in a batch takes the slope over them. ConfigError where one was not measured."""
    from arlo.planning.replicas import Line, fitted

    memory = [(r.max_length * r.max_batch, r.memory_mb) for r in runtimes]
    known = [(float(tokens), float(mb)) for tokens, mb in memory if mb is not None]
    if len(known) < len(memory):
        raise ConfigError(
            f"how much memory the runtimes of {repository} take is not known: `arlo compile` measures it, on the device"
        )
    per_row = fitted(known).per_row * sum(runtime.max_length for runtime in runtimes)
    return Line(max(0.0, sum(mb for _, mb in known) - per_row * most), per_row)


def show(packed: dict[str, Any], args: argparse.Namespace) -> None:
    """For people."""
    if packed["replicas"] is None:
        print(
            f"packed: nothing carries {args.rate:g} rows/s in {args.memory_mb} MB a worker at {args.utilisation:.0%} "
            f"within {args.slo_ms:g} ms"
        )
        return
    held = ", ".join(f"w{number}: {' + '.join(stages) or 'nothing'}" for number, stages in enumerate(packed["workers"]))
    print(
        f"packed for {packed['point']} ({args.memory_mb} MB a worker, {args.utilisation:.0%} of its time): {held}; "
        f"carries {packed['rows_per_s']:.0f} rows/s, {packed['batch']} at a time"
    )
    if max(packed["spans"]) > 1:
        print("models spread over several workers are planned, not served: a stage runs whole on one worker")
    elif packed["all_fit"]:
        print("all stages fit on each worker: serve them so, by leaving [cascade] workers out")
    else:
        print(
            "served are all stages on every worker, in the lengths that fit, or workers of each stage's own: "
            f"[cascade] workers = {packed['replicas']} where those are as many as there are workers"
        )
