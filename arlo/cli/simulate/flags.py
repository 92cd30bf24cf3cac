"""The flags of `arlo simulate`: each sets a key of a scenario file; lists in some of them make several scenarios."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arlo.cli.text import LENGTHS, TIMES_MS
from arlo.config.flag import KeyFlag, flags_of
from arlo.errors import ConfigError

ALIASES = {"bursty": "twitter-bursty", "stable": "twitter-stable"}  # of --arrivals
MOST_RUNS = 1000
MOST_SPAN = 10_000  # of a range of workers


GROUPS: dict[str, tuple[str, ...]] = {  # title in the help: sections of a scenario
    "the requests": ("workload",),
    "the cluster": ("cluster",),
    "scheduling": ("dispatch", "allocation"),
    "scaling": ("scaling",),
    "the run": ("run",),
}


@functools.cache
def flags() -> tuple[KeyFlag, ...]:
    """All flags that set a key, in the order of the help."""
    from arlo.simulator.scenario.file import SECTIONS

    return tuple(flag for sections in GROUPS.values() for name in sections for flag in flags_of(name, SECTIONS[name]))


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """One run: its scenario, the flags that vary between the runs, and its name."""

    config: Any  # ScenarioConfig
    varied: dict[str, Any]
    label: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of keys, and those that need more than one key."""
    for title, sections in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags():
            if flag.section in sections:
                flag.add_to(group)
        if title == "the cluster":
            group.add_argument(
                "--max-lengths", type=LENGTHS, metavar="L,L,...", help="maximum lengths of the runtimes, ascending"
            )
            group.add_argument(
                "--latency-ms",
                type=TIMES_MS,
                metavar="MS,MS,...",
                help="latency at each of --max-lengths, in place of --profile",
            )
            group.add_argument(
                "--fail",
                action="append",
                default=[],
                metavar="AT:WORKER[:RESTART]",
                help="at second AT a worker fails; it is back RESTART seconds later, or never",
            )
            group.add_argument(
                "--slow",
                action="append",
                default=[],
                metavar="AT:WORKER:FACTOR",
                help="from second AT on a worker takes FACTOR times as long",
            )


def plans(args: argparse.Namespace) -> list[Plan]:
    """The runs that the command line asks for, in the order of its lists. ConfigError gives the remedy."""
    from arlo.simulator.scenario import config as files
    from arlo.simulator.scenario.file import ScenarioConfig

    base = files.load(args.file) if args.file is not None else ScenarioConfig()
    given: dict[KeyFlag, list[Any]] = {}
    for flag in flags():
        text = getattr(args, flag.name)
        if text is not None:
            given[flag] = list(values_of(flag, text))
    runs = math.prod(len(values) for values in given.values())
    if runs > MOST_RUNS:
        raise ConfigError(f"the lists ask for {runs:,} runs: at most {MOST_RUNS:,} at a time")
    swept = [flag for flag, values in given.items() if len(values) > 1]
    made = []
    for values in itertools.product(*given.values()):
        chosen = dict(zip(given, values, strict=True))
        varied = {flag.name: chosen[flag] for flag in swept}
        made.append(Plan(_config(base, chosen, args), varied, ", ".join(_word(flag, chosen[flag]) for flag in swept)))
    return made


def values_of(flag: KeyFlag, text: str) -> Iterator[Any]:
    """The values that the text of a flag means: several if it may vary. ConfigError names the flag."""
    if flag.kind == "path":
        yield Path(text).expanduser().absolute()
        return
    if flag.key == "profile":
        from arlo.simulator.scenario.config import profile_path

        yield profile_path(text, Path.cwd())
        return
    if flag.kind == "ints":
        yield tuple(_number(flag.option, part, int) for part in text.split(","))
        return
    if flag.kind == "spec" and ":" in text:  # steps:0=100,60=200: its commas are its own
        yield text
        return
    # A length distribution or a path may hold commas; values that sweep do not.
    for part in text.split(",") if flag.flag.sweep else [text]:
        if flag.key == "workers" and "-" in part:
            yield from _span(part)
        elif flag.kind == "text":
            if not part.strip():
                raise ConfigError(f"{flag.option} has an empty value in {text!r}")
            yield ALIASES.get(part.strip(), part.strip()) if flag.key == "arrivals" else part.strip()
        else:
            if not flag.flag.sweep and "," in part:
                raise ConfigError(f"{flag.option} takes one number, not the list {text!r}")
            yield _number(flag.option, part, int if flag.kind == "int" else float)


def _span(text: str) -> range:
    ends = text.split("-")
    if len(ends) != 2 or not all(end.strip().isdecimal() for end in ends) or int(ends[0]) > int(ends[1]):
        raise ConfigError(f"--workers must be numbers such as 8,10,12 or a range such as 8-12, not {text!r}")
    if int(ends[1]) - int(ends[0]) >= MOST_SPAN:
        raise ConfigError(f"--workers {text} is a range of more than {MOST_SPAN:,} numbers")
    return range(int(ends[0]), int(ends[1]) + 1)


def _number(option: str, text: str, kind: type[int] | type[float]) -> Any:
    try:
        value = kind(text)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{option} must be {what}, several joined by commas, not {text!r}") from None
    if not math.isfinite(value):
        raise ConfigError(f"{option} must be finite, not {text!r}")
    return value


def _word(flag: KeyFlag, value: Any) -> str:
    """A varied value in the name of its run."""
    if flag.section == "scaling":
        return f"scaling {value}"
    if flag.section == "allocation":
        return f"{value} allocation"
    if flag.key == "rate":
        return f"{value:g} req/s"
    return {"workers": f"{value} GPUs", "seed": f"seed {value}"}.get(flag.key, str(value))


def _config(base: Any, chosen: dict[KeyFlag, Any], args: argparse.Namespace) -> Any:
    """The file's scenario with these values. FieldErrors are worded in terms of the flags."""
    from arlo.config.field import FieldError
    from arlo.config.load import renamed
    from arlo.simulator.scenario.file import ScenarioConfig

    changes: dict[str, dict[str, Any]] = {}
    for flag, value in chosen.items():
        changes.setdefault(flag.section, {})[flag.key] = value
    try:
        parts: dict[str, Any] = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
        _instances(parts, changes)
        _runtimes(parts, changes, args)
        _trace(parts, changes)
        for section, values in changes.items():
            if values:
                parts[section] = dataclasses.replace(parts[section], **values)
        parts["fault"] = (*parts["fault"], *_faults(args))
        return ScenarioConfig(**parts)
    except FieldError as error:
        raise ConfigError(in_flags(renamed(str(error)), args.file)) from None


def in_flags(text: str, file: Path | None) -> str:
    """A message about keys of a scenario, in terms of the flags that set them."""
    for flag in sorted(flags(), key=lambda flag: -len(flag.key)):
        text = text.replace(f"{flag.section}.{flag.key}", flag.option)
    text = text.replace("fault.worker", "the worker of --fail and --slow")
    text = text.replace("cluster.max_lengths", "--max-lengths")
    return f"{text} (with {file})" if file is not None else text


def _instances(parts: dict[str, Any], changes: dict[str, dict[str, Any]]) -> None:
    """--instances also sets the number of workers; --workers or another scheme overrides the file's instances."""
    allocation, cluster = changes.get("allocation", {}), changes.get("cluster", {})
    if "instances" in allocation:
        changes.setdefault("cluster", {}).setdefault("workers", sum(allocation["instances"]))
    elif parts["allocation"].instances and {"scheme", "profile"} & set(cluster):
        changes.setdefault("allocation", {})["instances"] = ()
        if parts["allocation"].kind == "fixed":
            changes["allocation"].setdefault("kind", None)


def _runtimes(parts: dict[str, Any], changes: dict[str, dict[str, Any]], args: argparse.Namespace) -> None:
    """--max-lengths with --latency-ms are runtimes; alone they choose among those of the latency profile."""
    from arlo.cli.plan.inputs import check_latencies
    from arlo.simulator.scenario.sections import RuntimeSection

    cluster = changes.setdefault("cluster", {})
    if cluster.get("profile") is not None:
        parts["runtime"] = ()
        if args.latency_ms is not None:
            raise ConfigError("give --latency-ms or --profile, not both: each says how long the runtimes take")
    if args.latency_ms is not None and args.max_lengths is None:
        raise ConfigError("--latency-ms needs --max-lengths: the runtimes that take so long")
    if args.max_lengths is None:
        return
    if args.latency_ms is None:
        if parts["runtime"]:
            raise ConfigError("--max-lengths needs --latency-ms beside it, as the file gives its runtimes itself")
        cluster["max_lengths"] = args.max_lengths
        return
    check_latencies(args)
    parts["runtime"] = tuple(
        RuntimeSection(max_length=length, latency_ms=ms)
        for length, ms in zip(args.max_lengths, args.latency_ms, strict=True)
    )
    cluster.update(profile=None, max_lengths=())


def _trace(parts: dict[str, Any], changes: dict[str, dict[str, Any]]) -> None:
    """--trace overrides the file's drawn workload, and the other way round."""
    from arlo.simulator.scenario.sections import TRACE_EXCLUDES

    workload = changes.get("workload", {})
    drawn = TRACE_EXCLUDES
    if "trace" in workload:
        for key in drawn:
            workload.setdefault(key, None)
        for key in ("rate", "duration_s"):
            workload.setdefault(key, None)
    elif parts["cluster"].serves is not None and {"counts", "segment"} & set(workload):
        for key in ("rate", "duration_s"):  # counts and segment give these
            workload.setdefault(key, None)
    elif parts["workload"].trace is not None and any(key in workload for key in drawn):
        workload["trace"] = None


def _faults(args: argparse.Namespace) -> Iterator[Any]:
    from arlo.simulator.scenario.sections import FaultSection

    for text in args.fail:
        at, worker, *restart = _parts(text, "--fail", (2, 3), "AT:WORKER or AT:WORKER:RESTART, as in 30:2:5")
        yield FaultSection(at_s=at, worker=int(worker), kind="fail", restart_s=restart[0] if restart else None)
    for text in args.slow:
        at, worker, factor = _parts(text, "--slow", (3,), "AT:WORKER:FACTOR, as in 30:2:1.5")
        yield FaultSection(at_s=at, worker=int(worker), kind="slow", factor=factor)


def _parts(text: str, option: str, counts: tuple[int, ...], form: str) -> list[float]:
    try:
        parts = [float(part) for part in text.split(":")]
    except ValueError:
        parts = []
    if len(parts) not in counts or not all(math.isfinite(part) and part >= 0 for part in parts) or parts[1] % 1:
        raise ConfigError(f"{option} is {form}, not {text!r}")
    return parts
