"""The flags of `arlo simulate`: each sets a key of a scenario file; lists in some of them make several scenarios."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from arlo.errors import ConfigError

Kind = Literal["int", "float", "rate", "text", "ints", "path"]
ALIASES = {"bursty": "twitter-bursty", "stable": "twitter-stable"}  # of --arrivals
MOST_RUNS = 1000
MOST_SPAN = 10_000  # of a range of workers


@dataclasses.dataclass(frozen=True, slots=True)
class Flag:
    """`option` sets `section`.`key`; with `sweep`, several values joined by commas make several runs."""

    option: str
    section: str
    key: str
    kind: Kind
    metavar: str
    help: str
    sweep: bool = False

    @property
    def name(self) -> str:
        """The attribute in the parsed arguments."""
        return self.option.removeprefix("--").replace("-", "_")


GROUPS: dict[str, tuple[Flag, ...]] = {
    "the requests": (
        Flag(
            "--arrivals",
            "workload",
            "arrivals",
            "text",
            "NAME",
            "twitter-bursty (default), twitter-stable, poisson, mmpp, gamma, constant",
            True,
        ),
        Flag(
            "--rate",
            "workload",
            "rate",
            "rate",
            "RPS",
            "mean requests per second (default: 1000), or ramp:A:B, ...",
            True,
        ),
        Flag("--duration-s", "workload", "duration_s", "float", "S", "how long they arrive (default: 120)"),
        Flag("--length", "workload", "length", "text", "SPEC", "lengths: paper (default), tweets, fixed:N, ..."),
        Flag("--trace", "workload", "trace", "path", "FILE", "the requests of a trace (CSV or Parquet)"),
        Flag(
            "--burst",
            "workload",
            "burst",
            "float",
            "X",
            "busy over quiet rate, of twitter-bursty and mmpp (default: 3)",
        ),
        Flag("--sojourn-ms", "workload", "sojourn_ms", "float", "MS", "mean time busy, and quiet (default: 100)"),
        Flag(
            "--drift", "workload", "drift", "text", "NAME", "of lengths over minutes: none, weak, paper, SPREAD[:TAU_S]"
        ),
        Flag(
            "--counts", "workload", "counts", "path", "FILE", "the rate follows arrivals counted per second or minute"
        ),
        Flag("--segment", "workload", "segment", "text", "NAME", "the rate follows a load that is shipped"),
        Flag(
            "--tokens", "workload", "tokens", "text", "NAME", "lengths in an Azure LLM trace: context, generated, total"
        ),
        Flag("--rescale", "workload", "rescale", "int", "MAX", "stretch lengths so that 125 tokens become MAX"),
    ),
    "the cluster": (
        Flag("--workers", "cluster", "workers", "int", "N", "GPUs (default: 10); 8,10,12 or 8-12 compares", True),
        Flag(
            "--scheme",
            "cluster",
            "scheme",
            "text",
            "NAME",
            "arlo (default: as we ship it), paper (Arlo as published), st, dt, infaas",
            True,
        ),
        Flag("--profile", "cluster", "profile", "text", "NAME", "latencies: bert-base (default), ..., or a repository"),
        Flag("--max-batch", "cluster", "max_batch", "int", "ROWS", "rows at once (default: 1, or the repository's)"),
        Flag("--dynamic", "cluster", "dynamic", "text", "NAME", "model of the latency of dynamic shapes, for dt"),
        Flag("--slo-ms", "cluster", "slo_ms", "float", "MS", "the SLO (default: the latency profile's, else 150)"),
        Flag("--overhead-ms", "cluster", "overhead_ms", "float", "MS", "added to each request (default: 0.8)"),
        Flag("--timeout-ms", "cluster", "timeout_ms", "float", "MS", "clients give up after this (default: never)"),
        Flag("--noise", "cluster", "noise", "float", "CV", "variation of execution times (default: 0)"),
    ),
    "scheduling": (
        Flag(
            "--policy",
            "dispatch",
            "policy",
            "text",
            "NAME",
            "rs, ilb, ig, infaas, uniform, eft, late (default: the scheme's; late for arlo)",
            True,
        ),
        Flag(
            "--allocation",
            "allocation",
            "kind",
            "text",
            "KIND",
            "periodic, even, global, oracle (default: the scheme's; periodic for arlo)",
            True,
        ),
        Flag("--instances", "allocation", "instances", "ints", "N,N,...", "instances of each runtime, fixed"),
        Flag("--period-s", "allocation", "period_s", "float", "S", "between two allocations (default: 120)"),
        Flag("--solver", "allocation", "solver", "text", "NAME", "exact, gurobi or highs (default: exact)"),
        Flag("--objective", "allocation", "objective", "text", "NAME", "queueing or paper (default: the scheme's)"),
        Flag("--replacement-s", "allocation", "replacement_s", "float", "S", "to load another runtime (default: 1)"),
    ),
    "scaling": (
        Flag("--scaling", "scaling", "kind", "text", "KIND", "none (default), target, headroom, or scheme", True),
        Flag("--min-workers", "scaling", "min_workers", "int", "N", "never fewer GPUs (default: 1)"),
        Flag("--max-workers", "scaling", "max_workers", "int", "N", "never more GPUs (default: 1000)"),
    ),
    "the run": (
        Flag("--seed", "run", "seed", "int", "N", "of all that is random (default: 0)", True),
        Flag("--warmup-s", "run", "warmup_s", "float", "S", "requests before are not counted (default: 0)"),
    ),
}
FLAGS = tuple(flag for group in GROUPS.values() for flag in group)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """One run: its scenario, the flags that vary between the runs, and what to call it."""

    config: Any  # ScenarioConfig
    varied: dict[str, Any]
    label: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add FLAGS, and those that need more than one key."""
    for title, flags in GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            group.add_argument(flag.option, metavar=flag.metavar, help=flag.help)
        if title == "the cluster":
            group.add_argument("--max-lengths", metavar="L,L,...", help="maximum lengths of the runtimes, ascending")
            group.add_argument(
                "--latency-ms", metavar="MS,MS,...", help="latency at each of --max-lengths, in place of --profile"
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
    """The runs that the command line asks for, in the order of its lists. ConfigError says what to change."""
    from arlo.simulator.scenario import config as files
    from arlo.simulator.scenario.sections import ScenarioConfig

    base = files.load(args.file) if args.file is not None else ScenarioConfig()
    given: dict[Flag, list[Any]] = {}
    for flag in FLAGS:
        text = getattr(args, flag.name)
        if text is not None:
            given[flag] = list(_values(flag, text))
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


def _values(flag: Flag, text: str) -> Iterator[Any]:
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
    if flag.kind == "rate" and ":" in text:  # steps:0=100,60=200: its commas are its own
        yield text
        return
    # A length distribution or a path may hold commas; what sweeps does not.
    for part in text.split(",") if flag.sweep else [text]:
        if flag.key == "workers" and "-" in part:
            yield from _span(part)
        elif flag.kind == "text":
            if not part.strip():
                raise ConfigError(f"{flag.option} has an empty value in {text!r}")
            yield ALIASES.get(part.strip(), part.strip()) if flag.key == "arrivals" else part.strip()
        else:
            if not flag.sweep and "," in part:
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


def _word(flag: Flag, value: Any) -> str:
    """A varied value in the name of its run."""
    if flag.section == "scaling":
        return f"scaling {value}"
    if flag.section == "allocation":
        return f"{value} allocation"
    if flag.key == "rate":
        return f"{value:g} req/s"
    return {"workers": f"{value} GPUs", "seed": f"seed {value}"}.get(flag.key, str(value))


def _config(base: Any, chosen: dict[Flag, Any], args: argparse.Namespace) -> Any:
    """The file's scenario with these values. FieldErrors are told in terms of the flags."""
    from arlo.config.field import FieldError
    from arlo.config.load import renamed
    from arlo.simulator.scenario.sections import ScenarioConfig

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
    for flag in sorted(FLAGS, key=lambda flag: -len(flag.key)):
        text = text.replace(f"{flag.section}.{flag.key}", flag.option)
    text = text.replace("fault.worker", "the worker of --fail and --slow")
    text = text.replace("cluster.max_lengths", "--max-lengths")
    return f"{text} (with {file})" if file is not None else text


def _instances(parts: dict[str, Any], changes: dict[str, dict[str, Any]]) -> None:
    """--instances says the number of workers too; --workers or another scheme set the file's instances aside."""
    allocation, cluster = changes.get("allocation", {}), changes.get("cluster", {})
    if "instances" in allocation:
        changes.setdefault("cluster", {}).setdefault("workers", sum(allocation["instances"]))
    elif parts["allocation"].instances and {"scheme", "profile"} & set(cluster):
        changes.setdefault("allocation", {})["instances"] = ()
        if parts["allocation"].kind == "fixed":
            changes["allocation"].setdefault("kind", None)


def _runtimes(parts: dict[str, Any], changes: dict[str, dict[str, Any]], args: argparse.Namespace) -> None:
    """--max-lengths with --latency-ms are runtimes; alone they choose among those of the latency profile."""
    from arlo.cli.plan.inputs import numbers
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
    lengths = numbers(args.max_lengths, "--max-lengths")
    if any(length != int(length) or length < 1 for length in lengths):
        raise ConfigError(f"--max-lengths must be whole numbers of tokens of at least 1, not {args.max_lengths!r}")
    if lengths != sorted(set(lengths)):
        raise ConfigError(f"--max-lengths must ascend, without one twice: {args.max_lengths!r}")
    if args.latency_ms is None:
        if parts["runtime"]:
            raise ConfigError("--max-lengths needs --latency-ms beside it, as the file gives its runtimes itself")
        cluster["max_lengths"] = tuple(int(length) for length in lengths)
        return
    latencies = numbers(args.latency_ms, "--latency-ms")
    if len(latencies) != len(lengths):
        raise ConfigError(
            f"--latency-ms needs one number for each of the {len(lengths)} --max-lengths, not {len(latencies)}"
        )
    if min(latencies) <= 0:
        raise ConfigError(f"--latency-ms must be above 0 ms, not {args.latency_ms!r}")
    parts["runtime"] = tuple(
        RuntimeSection(max_length=int(length), latency_ms=ms) for length, ms in zip(lengths, latencies, strict=True)
    )
    cluster.update(profile=None, max_lengths=())


def _trace(parts: dict[str, Any], changes: dict[str, dict[str, Any]]) -> None:
    """--trace sets aside what the file draws, and the other way round."""
    from arlo.simulator.scenario.sections import TRACE_EXCLUDES

    workload = changes.get("workload", {})
    drawn = TRACE_EXCLUDES
    if "trace" in workload:
        for key in drawn:
            workload.setdefault(key, None)
        for key in ("rate", "duration_s"):
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
