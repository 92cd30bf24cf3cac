"""`arlo fit --from`: operating points refitted to the traffic that a gateway serves."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.fit.common import folder_of, need_scipy
from arlo.cli.text import print_json
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.cascade.manifest import CascadeManifest, Point
    from arlo.cascade.refresh import Sample


def run(args: argparse.Namespace) -> int:
    """Fetch the sample, fit, write."""
    need_scipy()
    from arlo.cascade.manifest import CascadeManifest
    from arlo.cascade.refresh import fit_temperatures, sample_of, signs

    if len(args.models) != 1:
        raise ConfigError("--from takes one cascade.json, whose gateway it asks")
    path = Path(args.models[0])
    before, folder = CascadeManifest.load(path), folder_of(path)
    chosen = before.point()
    sample = sample_of(asyncio.run(_fetch(args, before)), before)
    apart = signs(before, sample)
    cascade, temperatures = fit_temperatures(before, sample) if args.temperatures else (before, [])
    if args.temperatures:
        sample = sample.take(_second(sample))  # thresholds come from rows that no T was fitted on
    fit = functools.partial(_refreshed, cascade, folder, sample, bins=args.by_length)
    olds = list(before.points) if args.temperatures else [chosen]
    pairs = [(old, *fit(old, old.name if args.temperatures else f"{old.name}-refreshed")) for old in olds]
    made = {new.name: new for _, new, _ in pairs}
    points = [made.pop(each.name, each) for each in cascade.points]
    cascade = dataclasses.replace(
        cascade, points=(*points, *made.values()), curve=() if temperatures else cascade.curve
    )
    out = args.out or path
    cascade.save(out)
    for old, _, notes in pairs:
        for note in notes:
            print(f"arlo: {old.name}: {note}", file=sys.stderr)
    if args.json:
        print_json(
            {
                "rows": sample.rows,
                "shift": {what: {"distance": d, "chance": p} for what, (d, p) in apart.items()},
                "temperatures": [dataclasses.asdict(each) for each in temperatures],
                "points": [dataclasses.asdict(new) for _, new, _ in pairs],
                "written": str(out),
            }
        )
        return 0
    for what, (distance, chance) in apart.items():
        print(f"{what}: {distance:.3f} from the test split, {'by chance' if chance > 1e-3 else 'which is no chance'}")
    for each in temperatures:
        print(
            f"{each.stage}: T {each.t[0]:.3f} -> {each.t[1]:.3f}, "
            f"ECE15 against the last stage {each.ece15[0]:.3f} -> {each.ece15[1]:.3f}"
        )
    _print([(old, new) for old, new, _ in pairs], sample.rows)
    print(f"written to {out}; next: `arlo config use serve.toml {pairs[0][1].name}` puts a point in force")
    return 0


def _second(sample: Sample) -> Any:
    import numpy as np

    return np.arange(sample.rows) % 2 == 1


async def _fetch(args: argparse.Namespace, cascade: CascadeManifest) -> Any:
    from arlo.control.gateway.admin import AdminClient

    async with AdminClient(args.source, model=cascade.name) as admin:
        return await admin.get_sample()


def _refreshed(
    cascade: CascadeManifest, folder: Path, sample: Sample, point: Point, name: str, *, bins: tuple[int, ...] | None
) -> tuple[Point, list[str]]:
    from arlo.cascade.refresh import mean_ms, refreshed
    from arlo.catalog.manifest import Manifest

    times = []
    for stage in cascade.stages:
        runtimes = Manifest.load(folder / stage.repository).runtimes
        latency = sorted((each.max_length, each.latency_ns(1) / 1e6) for each in runtimes)
        times.append(mean_ms(latency, sample.length))
    return refreshed(cascade, point, sample, name=name, stage_ms=times, bins=bins)


def _print(pairs: list[tuple[Point, Point]], rows: int) -> None:
    from arlo.cascade.refresh import promise
    from arlo.report.terminal import columns, console

    def thresholds(point: Point) -> str:
        return ", ".join("/".join(f"{t:.3f}" for _, t in r.t) if r.kind == "hard" else "soft" for r in point.rules[0])

    def figures(point: Point) -> tuple[str, ...]:
        reach = ", ".join(f"{each:.0%}" for each in point.reach[1:])
        return thresholds(point), reach, f"{point.agreement:.2%}", f"{point.mean_ms:.2f}"

    cells = [
        (
            new.name,
            *(f"{a} -> {b}" for a, b in zip(figures(old), figures(new), strict=True)),
            promise(new.guarantee, old),
        )
        for old, new in pairs
    ]
    head = ("point", "thresholds", "reach", "agreement", "mean ms", "for")
    title = f"from {rows} rows of the gateway's sample: as it was -> now"
    console(160).print(columns(head, cells, left=range(6), title=title))
