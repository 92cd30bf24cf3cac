"""Placement of a cascade's stages on workers, with replicas and batches (HybridServe Algorithm 3).

    python -m benchmarks.papers.hybridserve.plan CASCADE --data FILE --workers 3 --memory-mb 400 --rate 50 --slo-ms 100

Planned, not served: the product's workers hold all stages, or those of one. HiGHS solves the packing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arlo.catalog.manifest import Manifest, Runtime
from arlo.cli.fit.common import folder_of, need_scipy
from arlo.errors import ConfigError
from arlo.simulator.cascade.build import repository_runtimes
from benchmarks.papers.hybridserve.packing import Device, transfers
from benchmarks.papers.hybridserve.replicas import Line, StageNeeds, fitted, plan

if TYPE_CHECKING:
    from arlo.cascade.decide import Ints
    from arlo.cascade.study import Study
MOST_REPLICAS = 8  # of a stage
MOST_PLANS = 300_000  # combinations of batch, replicas and spans
BYTES = {"INT64": 8, "INT32": 4, "fp16": 2, "bf16": 2}  # of a value; 4 of any other precision


def study_of(cascade: Path, texts: Path, records: Path | None = None) -> Study:
    """A fitted cascade with its records. `cascade`: a cascade.json or its folder; `records`: the folder of the records,
    by default `records` next to the cascade."""
    from arlo.cascade.manifest import CascadeManifest
    from arlo.cascade.records import Records, read_data
    from arlo.cascade.study import load_study

    need_scipy()
    found, folder, data = CascadeManifest.load(cascade), folder_of(cascade), read_data(texts)
    kept = Records(records or folder / "records", data)
    used = found.data
    if used is None:
        return load_study(found, folder, data, kept)
    return load_study(found, folder, data, kept, shares=used.split, seed=used.seed)


def found(args: argparse.Namespace, test: Study, stages: Any) -> dict[str, Any]:
    """The plan at an operating point: by memory of all runtimes of a stage and by time at the reach and the lengths of
    the test split, with the least possible transfer between workers."""
    cascade = test.cascade
    point = cascade.point(args.point)
    folder = folder_of(args.cascade)
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
    """The costs of a stage for b rows."""
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
    """Memory of all runtimes of a stage, by the largest batch that they are built for. `arlo compile` measured each at
    its own largest batch; their slope gives the memory per token. ConfigError if a runtime was not measured."""
    memory = [(r.max_length * r.max_batch, r.memory_mb) for r in runtimes]
    known = [(float(tokens), float(mb)) for tokens, mb in memory if mb is not None]
    if len(known) < len(memory):
        raise ConfigError(
            f"how much memory the runtimes of {repository} take is not known: `arlo compile` measures it, on the device"
        )
    per_row = fitted(known).per_row * sum(runtime.max_length for runtime in runtimes)
    return Line(max(0.0, sum(mb for _, mb in known) - per_row * most), per_row)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan as JSON; returns 1 if no plan carries the rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("cascade", type=Path, help="a cascade.json with operating points")
    add("--data", type=Path, required=True, metavar="FILE", help="texts, JSON lines")
    add("--records", type=Path, metavar="DIR", help="where records are (default: records beside the cascade)")
    add("--point", metavar="NAME", help="operating point (default: the default one)")
    add("--workers", type=int, required=True, metavar="N")
    add("--memory-mb", type=int, required=True, metavar="N", help="of a worker's device")
    add("--rate", type=float, required=True, metavar="R", help="rows a second")
    add("--slo-ms", type=float, required=True, metavar="MS", help="for the first row of a batch")
    add("--utilisation", type=float, default=0.9, metavar="F", help="of a device, at most (default: 0.9)")
    add("--transfer", choices=("flow", "paper"), default="flow", help="rows between workers, or every pair (Eq. 2)")
    add("--span", type=int, default=1, metavar="N", help="workers that a model may be spread over (default: 1)")
    add("--width", type=int, default=768, metavar="N", help="values of a token's hidden state (default: 768)")
    args = parser.parse_args(argv)
    test = study_of(args.cascade, args.data, args.records).of(2)
    folder = folder_of(args.cascade)
    made = found(args, test, [repository_runtimes(folder / stage.repository) for stage in test.cascade.stages])
    print(json.dumps(made, indent=2))
    return 0 if made["replicas"] is not None else 1


if __name__ == "__main__":
    raise SystemExit(main())
