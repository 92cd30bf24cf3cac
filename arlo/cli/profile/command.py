"""`arlo compile profile`: measure the latency of every runtime on a real worker."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.text import print_json
from arlo.errors import ArloError, ConfigError

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.config import Config, WorkersConfig
    from arlo.profiler import LatencyProfile, ProfileOptions
    from arlo.workers import WorkerPool

DESCRIPTION = """Measure how long each runtime takes on a real worker, by length and batch, and write a latency profile.

One worker is started on this machine (or the first of workers.endpoints is used, with kind
"endpoints"). One runtime at a time is loaded; requests go to it one after the other, over gRPC,
until the confidence interval of the mean latency is narrow enough. `arlo serve` plans and
dispatches by these latencies: name the file in model.latency_profile, or write them into the
repository with --update, which also compares static runtimes with the dynamic one again and
recommends which to serve on this device.

Points are kept as they are measured: after Ctrl-C the same command goes on from there."""

EPILOG = """examples:
  arlo compile profile serve.toml                           all runtimes of a configuration
  arlo compile profile minilm --out minilm.json             a repository, with a worker of one thread
  arlo compile profile minilm --runtimes minilm_len64       one runtime
  arlo compile profile minilm --precision 0.01 --fresh      measure all again, closer
  arlo compile profile minilm --update                      and write the latencies into minilm/arlo.json

What it says about steps: latency rises in steps over the length on most GPUs (64 tokens wide for
BERT with TensorRT), and a maximum length at the end of a step wastes nothing. A dynamic runtime
shows them best: its lengths can be chosen with --lengths."""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `profile`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "profile",
        help="measure the latency of every runtime on a real worker",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument(
        "source", type=Path, metavar="CONFIG.toml|REPOSITORY", help="a configuration, or a model repository"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the profile (default: model.latency_profile, else MODEL-latency.json here)",
    )
    parser.add_argument("--runtimes", metavar="NAME,...", help="only these runtimes (default: all)")
    parser.add_argument(
        "--lengths", metavar="L,...", help="lengths of dynamic runtimes (default: up to 16, 32 or more tokens apart)"
    )
    parser.add_argument("--batches", metavar="ROWS,...", help="batches (default: 1, 2, 4, ... and max_batch)")
    parser.add_argument(
        "--outputs", metavar="NAME,...", help="outputs to ask for (default: the model's first; more take longer)"
    )
    parser.add_argument(
        "--confidence", type=float, default=0.95, metavar="P", help="of the interval of the mean (default: 0.95)"
    )
    parser.add_argument(
        "--precision",
        type=float,
        default=0.02,
        metavar="F",
        help="half width of that interval, as a share of the mean (default: 0.02)",
    )
    parser.add_argument(
        "--max-seconds", type=float, default=10.0, metavar="S", help="longest time for one point (default: 10)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of the worker (default: workers.threads, else 1)"
    )
    parser.add_argument("--fresh", action="store_true", help="measure all again, keep no point of --out")
    parser.add_argument("--update", action="store_true", help="write the latencies into the repository's arlo.json too")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")
    return parser


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The subject of a measurement, its place, and the workers' settings in a configuration (else defaults)."""

    repository: Path
    out: Path
    threads: int | None  # None: a worker that was not started here
    endpoint: str | None
    config: Config | None
    workers: WorkersConfig


def run(args: argparse.Namespace) -> int:
    """Measure, write, and print the results."""
    from arlo.catalog.manifest import Manifest
    from arlo.cli.recommend import recommended
    from arlo.profiler import LatencyProfile, ProfileOptions, with_profile

    target = _target(args)
    options = ProfileOptions(
        runtimes=_names(args.runtimes),
        lengths=_numbers(args.lengths, "--lengths"),
        batches=_numbers(args.batches, "--batches"),
        confidence=args.confidence,
        precision=args.precision,
        max_seconds=args.max_seconds,
        outputs=_names(args.outputs),
        load_timeout_s=target.workers.load_timeout_s,
    )
    manifest = Manifest.load(target.repository)
    before = LatencyProfile.load(target.out) if target.out.exists() and not args.fresh else None
    try:
        profile = asyncio.run(_measure(target, manifest, options, before))
    except (KeyboardInterrupt, asyncio.CancelledError) as stopped:
        if target.out.exists():
            _note(f"interrupted: what was measured is in {target.out}; the same command goes on from there")
        if isinstance(stopped, KeyboardInterrupt):
            raise
        return 128 + signal.SIGTERM
    profile.save(target.out)
    updated = None
    if args.update:
        updated = recommended(with_profile(manifest, profile, partial=True))
        updated.save(target.repository)
    if args.json:
        print_json(profile.as_dict())
    else:
        _print(profile, target, updated)
    return 0


def _target(args: argparse.Namespace) -> Target:
    if args.threads is not None and not 1 <= args.threads <= 256:
        raise ConfigError(f"--threads must be from 1 to 256, not {args.threads}")
    from arlo import config as configuration

    if args.source.is_dir():
        out = args.out or Path(f"{args.source.resolve().name}-latency.json")
        return Target(
            repository=args.source,
            out=out,
            threads=args.threads or 1,
            endpoint=None,
            config=None,
            workers=configuration.WorkersConfig(),
        )
    config = configuration.load(args.source)
    workers = config.workers
    out = args.out or config.model.latency_profile or Path(f"{config.model.repository.name}-latency.json")
    endpoint = workers.endpoints[0] if workers.kind == "endpoints" else None
    if endpoint is not None and args.threads is not None:
        raise ConfigError("--threads goes with a worker that is started here, not with workers.endpoints")
    if endpoint is not None:
        _note(
            f"measuring on the worker at {endpoint}, which is taken out of no deployment: traffic that a gateway sends "
            "there meanwhile disturbs the measurement, and is slowed down by it"
        )
    if workers.kind == "ray":
        _note('workers.kind is "ray": measuring on a worker started on this machine')
    threads = None if endpoint is not None else args.threads or workers.threads
    return Target(
        repository=config.model.repository,
        out=out,
        threads=threads,
        endpoint=endpoint,
        config=config,
        workers=workers,
    )


async def _measure(
    target: Target,
    manifest: Manifest,
    options: ProfileOptions,
    before: LatencyProfile | None,
) -> LatencyProfile:
    from rich.console import Console

    from arlo.cli.profile.progress import LiveProgress
    from arlo.profiler import profile_runtimes
    from arlo.profiler.machine import describe_device

    device = (
        f"worker at {target.endpoint}"
        if target.endpoint is not None
        else describe_device(target.repository, manifest, threads=target.threads or 1)
    )
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # SIGINT does so by itself
    with tempfile.TemporaryDirectory(prefix="arlo-profile-") as run_dir:
        pool = _pool(target, Path(run_dir))
        try:
            await pool.start()
            with LiveProgress(Console(stderr=True)) as show:
                return await profile_runtimes(
                    pool,
                    manifest,
                    device=device,
                    threads=target.threads,
                    options=options,
                    before=before,
                    save=lambda profile: profile.save(target.out),
                    report=show,
                )
        except ArloError:
            if target.out.exists():
                _note(f"what was measured is in {target.out}; --runtimes measures only some")
            raise
        finally:
            await pool.stop()


def _pool(target: Target, run_dir: Path) -> WorkerPool:
    """A pool of one worker. A worker started here gets a separate folder, away from a running `arlo serve`."""
    from arlo.workers import LocalPool

    config = target.config
    if target.endpoint is not None and config is not None:
        from arlo.config import DeploymentConfig
        from arlo.control.pool import make_pool

        workers = dataclasses.replace(config.workers, endpoints=(target.endpoint,))
        return make_pool(dataclasses.replace(config, workers=workers, deployment=DeploymentConfig(dynamic=1)))
    return LocalPool(
        target.repository,
        workers=1,
        run_dir=run_dir,
        threads=target.threads,
        metrics=False,
        start_timeout_s=target.workers.start_timeout_s,
        exit_timeout_s=2,  # only an abandoned request can be left
    )


def _print(profile: LatencyProfile, target: Target, updated: Manifest | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from arlo.cli.recommend import advice_line
    from arlo.profiler.findings import staircase_lines, warnings

    table = Table(box=None, pad_edge=False, title=f"{profile.model} on {profile.device}", title_justify="left")
    for column in ("runtime", "length", "batch", "mean ms", "+-", "p50 ms", "p98 ms", "compute ms", "samples"):
        table.add_column(column, justify="left" if column == "runtime" else "right", no_wrap=True)
    for runtime in profile.runtimes:
        for point in runtime.points:
            compute = "" if point.compute_us is None else f"{point.compute_us / 1000:.2f}"
            table.add_row(
                runtime.name,
                str(point.length),
                str(point.batch),
                f"{point.mean_us / 1000:.2f}",
                f"{point.half_width_us / point.mean_us:.1%}",
                f"{point.p50_us / 1000:.2f}",
                f"{point.p98_us / 1000:.2f}",
                compute,
                str(point.samples),
            )
    console = Console(soft_wrap=True, highlight=False)
    console.width = max(console.width, 110)
    console.print(table)
    for line in staircase_lines(profile):
        console.print(line, markup=False)
    for line in warnings(profile):
        console.print(f"warning: {line}", markup=False)
    if updated is not None:
        console.print(advice_line(updated), markup=False)
    also = "" if updated is None else f" and {target.repository}/arlo.json"
    console.print(f"written to {target.out}{also}", markup=False)
    if updated is None and (target.config is None or target.config.model.latency_profile is None):
        console.print(f'to use it: latency_profile = "{target.out}" in [model], or --update', markup=False)


def _note(text: str) -> None:
    print(f"arlo: {text}", file=sys.stderr, flush=True)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


def _numbers(text: str | None, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise ConfigError(f"{option} must be whole numbers joined by commas, not {text!r}") from None
