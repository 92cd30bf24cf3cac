"""The inputs of `arlo plan`: runtimes from options, repository or latency profile; demand from options or a trace."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.planning.allocation.problem import LatencyCurve
    from arlo.profiler.format import LatencyProfile

MOST_WORKERS = 100_000
MOST_ROWS = 1000  # of a range of workers


@dataclasses.dataclass(frozen=True, slots=True)
class Runtimes:
    """The runtimes to allocate, by ascending max_length, with notes on their source."""

    max_lengths: tuple[int, ...]
    curves: tuple[LatencyCurve, ...]
    load_ms: tuple[int | None, ...] = ()  # until a worker has loaded each; None, or empty: not measured
    warnings: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class BinnedDemand:
    """Q for each runtime, requests per SLO period, with notes on its source."""

    demand: tuple[float, ...]
    warnings: tuple[str, ...] = ()


def workers(text: str) -> range:
    """`10` or `4-16`, both ends included: the type of --workers."""
    ends = text.split("-")
    if len(ends) > 2 or not all(end.strip().isdecimal() and len(end) < 10 for end in ends):
        raise argparse.ArgumentTypeError(f"must be a number such as 10, or a range such as 4-16, not {text!r}")
    low, high = int(ends[0]), int(ends[-1])
    if not 1 <= low <= high <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MOST_WORKERS:,}, the smaller number first, not {text!r}")
    if high - low >= MOST_ROWS:
        raise argparse.ArgumentTypeError(f"{text} asks for {high - low + 1:,} plans: at most {MOST_ROWS:,} at a time")
    return range(low, high + 1)


def runtimes(args: argparse.Namespace) -> Runtimes:
    """The runtimes from --repository, --profile, both, or --max-lengths and --latency-ms."""
    from arlo.planning.allocation.problem import LatencyCurve

    files = args.repository is not None or args.profile is not None
    if files and (args.max_lengths is not None or args.latency_ms is not None):
        raise ConfigError("give --max-lengths and --latency-ms, or --repository and --profile, not both kinds")
    if files:
        return _from_files(args.repository, args.profile)
    if args.max_lengths is None or args.latency_ms is None:
        raise ConfigError(
            "name the runtimes: --max-lengths L,... and --latency-ms MS,..., or --repository DIR, or --profile FILE"
        )
    check_latencies(args)
    return Runtimes(args.max_lengths, tuple(LatencyCurve.single(ms) for ms in args.latency_ms))


def check_latencies(args: argparse.Namespace) -> None:
    """ConfigError unless there are as many --latency-ms as --max-lengths."""
    lengths, given = len(args.max_lengths), len(args.latency_ms)
    if given != lengths:
        raise ConfigError(f"--latency-ms needs one number for each of {lengths} --max-lengths, not {given}")


def demand(args: argparse.Namespace, max_lengths: tuple[int, ...]) -> BinnedDemand:
    """The demand from --demand, --trace, or --rate with --lengths."""
    from arlo.traces import read_csv

    kinds = {"--demand": args.demand, "--trace": args.trace, "--rate": args.rate}
    chosen = [name for name, value in kinds.items() if value is not None]
    if len(chosen) != 1:
        also = f", not {' and '.join(chosen)}" if chosen else ""
        raise ConfigError(f"give one of --demand Q,Q,..., --trace FILE, or --rate RPS with --lengths{also}")
    if (args.lengths is not None) != (args.rate is not None):
        raise ConfigError(
            "--rate needs --lengths: their distribution"
            if args.lengths is None
            else f"--lengths belongs to --rate, not to {chosen[0]}"
        )
    if args.demand is not None:
        if len(args.demand) != len(max_lengths):
            raise ConfigError(
                f"--demand needs one number for each of {len(max_lengths)} runtimes, not {len(args.demand)}"
            )
        return BinnedDemand(args.demand)
    if args.rate is not None:
        return _binned(args.lengths, args.rate, args.slo_ms, max_lengths)
    rate = read_csv(args.trace).rate
    if rate <= 0:
        raise ConfigError(f"{args.trace} has too few requests to tell their rate: at least two, at different times")
    return _binned(str(args.trace), rate, args.slo_ms, max_lengths)


def _from_files(repository: Path | None, profile_path: Path | None) -> Runtimes:
    from arlo.catalog.manifest import Manifest
    from arlo.planning.allocation.curves import curves, max_lengths, static_runtimes
    from arlo.profiler.apply import with_profile
    from arlo.profiler.format import LatencyProfile

    profile = LatencyProfile.load(profile_path) if profile_path is not None else None
    if repository is not None:
        manifest = Manifest.load(repository)
        manifest = with_profile(manifest, profile) if profile is not None else manifest
    else:
        assert profile is not None
        manifest = _as_manifest(profile)
    static = static_runtimes(manifest.runtimes)
    source = repository or profile_path
    if not static:
        raise ConfigError(
            f"{source} has only dynamic runtimes: each takes every length, so there is nothing to allocate"
        )
    chosen = {runtime.name for runtime in static}
    out = [runtime.name for runtime in manifest.runtimes if runtime.name not in chosen]
    warnings = (f"left out, dynamic or slower at the same max_length: {', '.join(out)}",) if out else ()
    return Runtimes(max_lengths(static), curves(static), tuple(runtime.load_ms for runtime in static), warnings)


def _as_manifest(profile: LatencyProfile) -> Manifest:
    """The runtimes of a latency profile, without a repository. Only their shapes and times matter to a plan."""
    from arlo.catalog.manifest import Manifest, Runtime

    measured = [
        Runtime(
            name=runtime.name,
            max_length=runtime.max_length,
            max_batch=runtime.max_batch,
            dynamic=runtime.dynamic,
            engine="",
            precision="",
            device=profile.device,
            latency=runtime.latency,
            load_ms=runtime.load_ms,
        )
        for runtime in profile.runtimes
    ]
    return Manifest(
        model=profile.model, task="", source="", tokenizer=None, inputs=(), outputs=(), runtimes=tuple(measured)
    )


def _binned(lengths: str, rate: float, slo_ms: float, max_lengths: tuple[int, ...]) -> BinnedDemand:
    """The arrivals at `rate` with these lengths, a specification as of `arlo compile lengths --histogram`."""
    import numpy as np

    from arlo.traces.traffic import traffic

    found = traffic(lengths, max_lengths[-1])
    level = np.searchsorted(max_lengths, np.arange(len(found.counts)))
    share = np.bincount(level, found.counts, len(max_lengths)) / found.counts.sum()
    warnings: tuple[str, ...] = ()
    if found.cut_share > 0:
        warnings = (
            f"{found.cut_share:.2%} of the requests are longer than {max_lengths[-1]} tokens; they are counted in the "
            "last bin, but no runtime takes them",
        )
    return BinnedDemand(tuple((share * rate * slo_ms / 1000).tolist()), warnings)
