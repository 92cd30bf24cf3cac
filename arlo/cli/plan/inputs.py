"""The inputs of `arlo plan`: runtimes from options, repository or latency profile; demand from options or a trace."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
from pathlib import Path
from typing import TYPE_CHECKING

from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.planning.allocation.problem import LatencyCurve
    from arlo.profiler.format import LatencyProfile
    from arlo.traces import LengthHistogram

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


def numbers(text: str, option: str) -> list[float]:
    """`1,2.5,3` as finite numbers; ConfigError names the option."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} must be numbers joined by commas, not {text!r}") from None
    if not all(math.isfinite(value) for value in values):
        raise ConfigError(f"{option} must be finite numbers, not {text!r}")
    return values


def workers(text: str) -> list[int]:
    """`10` or `4-16`, both ends included."""
    ends = text.split("-")
    if len(ends) > 2 or not all(end.strip().isdecimal() for end in ends):
        raise ConfigError(f"--workers must be a number such as 10, or a range such as 4-16, not {text!r}")
    low, high = int(ends[0]), int(ends[-1])
    if not 1 <= low <= high <= MOST_WORKERS:
        raise ConfigError(f"--workers must be from 1 to {MOST_WORKERS:,}, the smaller number first, not {text!r}")
    if high - low >= MOST_ROWS:
        raise ConfigError(f"--workers {text} asks for {high - low + 1:,} plans: at most {MOST_ROWS:,} at a time")
    return list(range(low, high + 1))


def is_range(text: str) -> bool:
    """Whether --workers is a range, of one number or more."""
    return "-" in text


def runtimes(args: argparse.Namespace) -> Runtimes:
    """The runtimes from --repository, --profile, both, or --max-lengths and --latency-ms."""
    files = args.repository is not None or args.profile is not None
    given = args.max_lengths is not None or args.latency_ms is not None
    if files and given:
        raise ConfigError("give --max-lengths and --latency-ms, or --repository and --profile, not both kinds")
    if files:
        return _from_files(args.repository, args.profile)
    if args.max_lengths is None or args.latency_ms is None:
        raise ConfigError(
            "name the runtimes: --max-lengths L,... and --latency-ms MS,..., or --repository DIR, or --profile FILE"
        )
    return _from_options(args.max_lengths, args.latency_ms)


def demand(args: argparse.Namespace, max_lengths: tuple[int, ...]) -> BinnedDemand:
    """The demand from --demand, --trace, or --rate with --lengths."""
    kinds = {"--demand": args.demand, "--trace": args.trace, "--rate": args.rate}
    chosen = [name for name, value in kinds.items() if value is not None]
    if len(chosen) != 1:
        also = f", not {' and '.join(chosen)}" if chosen else ""
        raise ConfigError(f"give one of --demand Q,Q,..., --trace FILE, or --rate RPS with --lengths{also}")
    if args.lengths is not None and args.rate is None:
        raise ConfigError(f"--lengths belongs to --rate, not to {chosen[0]}")
    if args.rescale is not None and args.demand is not None:
        raise ConfigError("--rescale stretches the lengths of --trace or --lengths; --demand has none")
    if args.demand is not None:
        return _demand_of_options(args.demand, max_lengths)
    if args.rate is not None:
        if args.lengths is None:
            raise ConfigError("--rate needs --lengths: tweets, fixed:N, uniform:MIN:MAX or a length histogram file")
        if not math.isfinite(args.rate) or args.rate <= 0:
            raise ConfigError(f"--rate must be above 0 requests per second, not {args.rate:g}")
        return _binned(histogram(args.lengths), args.rate, args.slo_ms, max_lengths, args.rescale)
    return _demand_of_trace(args.trace, args.slo_ms, max_lengths, args.rescale)


def histogram(spec: str) -> LengthHistogram:
    """`tweets`, `fixed:N`, `uniform:MIN:MAX`, or a file {"source": ..., "counts": {"tokens": requests}}."""
    from arlo.traces import LengthHistogram, parse_lengths, tweet_lengths

    path = Path(spec)
    name, *rest = spec.split(":")
    if path.is_file():
        return LengthHistogram.load(path)
    if name not in ("tweets", "fixed", "uniform"):
        if path.suffix or "/" in spec:
            raise ConfigError(f"--lengths {spec} does not exist: name a length histogram file, or tweets, fixed:N, ...")
        match = difflib.get_close_matches(name, ("tweets", "fixed", "uniform"), n=1)
        hint = f"; did you mean {match[0]}?" if match else ""
        raise ConfigError(
            f"--lengths is tweets, fixed:N, uniform:MIN:MAX or a length histogram file, not {spec!r}{hint}"
        )
    parse_lengths(spec)  # raises an error if it is wrong
    if name == "tweets":
        return tweet_lengths()
    low, high = int(rest[0]), int(rest[-1])
    return LengthHistogram.of(dict.fromkeys(range(low, high + 1), 1), spec)


def _from_options(max_lengths: str, latency_ms: str) -> Runtimes:
    from arlo.planning.allocation.problem import LatencyCurve

    lengths = numbers(max_lengths, "--max-lengths")
    latencies = numbers(latency_ms, "--latency-ms")
    if any(length != int(length) or length < 1 for length in lengths):
        raise ConfigError(f"--max-lengths must be whole numbers of tokens of at least 1, not {max_lengths!r}")
    if lengths != sorted(set(lengths)):
        raise ConfigError(f"--max-lengths must ascend, without one twice: {max_lengths!r}")
    if len(latencies) != len(lengths):
        raise ConfigError(f"--latency-ms needs one number for each of {len(lengths)} lengths, not {len(latencies)}")
    if any(latency <= 0 for latency in latencies):
        raise ConfigError(f"--latency-ms must be above 0 ms, not {latency_ms!r}")
    return Runtimes(tuple(int(n) for n in lengths), tuple(LatencyCurve.single(ms) for ms in latencies))


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
    from arlo.catalog.manifest import LatencyPoint, Manifest, Runtime

    measured = [
        Runtime(
            name=runtime.name,
            max_length=runtime.max_length,
            max_batch=runtime.max_batch,
            dynamic=runtime.dynamic,
            engine="",
            precision="",
            device=profile.device,
            latency=tuple(
                LatencyPoint(length=point.length, batch=point.batch, latency_us=max(1, round(point.mean_us)))
                for point in runtime.points
            ),
            load_ms=runtime.load_ms,
        )
        for runtime in profile.runtimes
    ]
    return Manifest(
        model=profile.model, task="", source="", tokenizer=None, inputs=(), outputs=(), runtimes=tuple(measured)
    )


def _demand_of_options(text: str, max_lengths: tuple[int, ...]) -> BinnedDemand:
    values = numbers(text, "--demand")
    if len(values) != len(max_lengths):
        raise ConfigError(f"--demand needs one number for each of {len(max_lengths)} runtimes, not {len(values)}")
    if min(values) < 0:
        raise ConfigError(f"--demand must be at least 0 requests per SLO period, not {text!r}")
    return BinnedDemand(tuple(values))


def _demand_of_trace(path: Path, slo_ms: float, max_lengths: tuple[int, ...], longest: int | None) -> BinnedDemand:
    import numpy as np

    from arlo.traces import LengthHistogram, read_csv

    trace = read_csv(path)
    if trace.rate <= 0:
        raise ConfigError(f"{path} has too few requests to tell their rate: at least two, at different times")
    length, count = np.unique(trace.length, return_counts=True)
    counted = LengthHistogram.of(dict(zip(length.tolist(), count.tolist(), strict=True)), str(path))
    return _binned(counted, trace.rate, slo_ms, max_lengths, longest)


def _binned(
    counted: LengthHistogram, rate: float, slo_ms: float, max_lengths: tuple[int, ...], longest: int | None
) -> BinnedDemand:
    """The arrivals at `rate` with the lengths of a histogram, stretched to `longest` if given."""
    import numpy as np

    from arlo.traces import rescale

    length = counted.length if longest is None else rescale(counted.length, longest)
    level = np.minimum(np.searchsorted(max_lengths, length), len(max_lengths) - 1)
    share = np.bincount(level, counted.count, len(max_lengths)) / counted.count.sum()
    beyond = float(counted.count[length > max_lengths[-1]].sum() / counted.count.sum())
    warnings: tuple[str, ...] = ()
    if beyond > 0:
        warnings = (
            f"{beyond:.2%} of the requests are longer than {max_lengths[-1]} tokens; they are counted in the last bin, "
            "but no runtime takes them",
        )
    return BinnedDemand(tuple((share * rate * slo_ms / 1000).tolist()), warnings)
