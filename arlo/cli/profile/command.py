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

from arlo.cli.text import between, listed, print_json, words
from arlo.errors import ArloError, ConfigError

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.config import Config, WorkersConfig
    from arlo.profiler import LatencyProfile, ProfileOptions
    from arlo.workers import WorkerPool

COUNTS = listed(1, whole=True)

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
    parser.add_argument(
        "--runtimes", type=words, default=(), metavar="NAME,...", help="only these runtimes (default: all)"
    )
    parser.add_argument(
        "--lengths",
        type=COUNTS,
        default=(),
        metavar="L,...",
        help="lengths of dynamic runtimes (default: up to 16, 32 or more tokens apart)",
    )
    parser.add_argument(
        "--batches", type=COUNTS, default=(), metavar="ROWS,...", help="batches (default: 1, 2, 4, ... and max_batch)"
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
        "--threads", type=between(1, 256), metavar="N", help="threads of the worker (default: workers.threads, else 1)"
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
        runtimes=args.runtimes,
        lengths=args.lengths,
        batches=args.batches,
        confidence=args.confidence,
        precision=args.precision,
        max_seconds=args.max_seconds,
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
    from arlo.profiler.worker import end_on_sigterm

    device = (
        f"worker at {target.endpoint}"
        if target.endpoint is not None
        else describe_device(target.repository, manifest, threads=target.threads or 1)
    )
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="arlo-profile-") as run_dir:
        pool = _pool(target, run_dir)
        try:
            await pool.start()
            with LiveProgress(Console(stderr=True), "starting a worker") as show:
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


def _pool(target: Target, run_dir: str) -> WorkerPool:
    """A pool of one worker."""
    from arlo.profiler.worker import local_pool

    config = target.config
    if target.endpoint is not None and config is not None:
        from arlo.config import DeploymentConfig
        from arlo.control.pool import make_pool

        workers = dataclasses.replace(config.workers, endpoints=(target.endpoint,))
        return make_pool(dataclasses.replace(config, workers=workers, deployment=DeploymentConfig(dynamic=1)))
    timeout_s = target.workers.start_timeout_s
    return local_pool(target.repository, run_dir, threads=target.threads, start_timeout_s=timeout_s)


def _print(profile: LatencyProfile, target: Target, updated: Manifest | None) -> None:
    from arlo.cli.recommend import advice_line
    from arlo.profiler.findings import staircase_lines, warnings
    from arlo.report.terminal import columns, console, say, warn

    rows = [
        (
            runtime.name,
            str(point.length),
            str(point.batch),
            f"{point.mean_us / 1000:.2f}",
            f"{point.half_width_us / point.mean_us:.1%}",
            f"{point.p50_us / 1000:.2f}",
            f"{point.p98_us / 1000:.2f}",
            "" if point.compute_us is None else f"{point.compute_us / 1000:.2f}",
            str(point.samples),
        )
        for runtime in profile.runtimes
        for point in runtime.points
    ]
    head = ("runtime", "length", "batch", "mean ms", "+-", "p50 ms", "p98 ms", "compute ms", "samples")
    out = console(110)
    out.print(columns(head, rows, title=f"{profile.model} on {profile.device}"))
    say(out, staircase_lines(profile))
    warn(out, warnings(profile))
    also = "" if updated is None else f" and {target.repository}/arlo.json"
    say(out, [*([] if updated is None else [advice_line(updated)]), f"written to {target.out}{also}"])
    if updated is None and (target.config is None or target.config.model.latency_profile is None):
        say(out, [f'to use it: latency_profile = "{target.out}" in [model], or --update'])


def _note(text: str) -> None:
    print(f"arlo: {text}", file=sys.stderr, flush=True)
