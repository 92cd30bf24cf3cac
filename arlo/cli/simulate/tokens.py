"""`arlo simulate TOKENS.toml`: token adaptation under load, by the policies that were asked for.

`--tokens`, which of a scenario says what an Azure trace counts, names the policies here.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arlo.cli.simulate.flow import DEFAULT_DURATION_S, DEFAULT_RATE, TRAFFIC
from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.simulator.tokens.file import TokenSpec
    from arlo.simulator.tokens.run import TokenResult

OTHERS = {"workers", "seed", "warmup_s"}
LENGTHS = {"length", "rescale", "drift"}
SWEPT = ("tokens", "workers", "rate", "seed")
DEFAULT_POLICY = "price"


def is_tokens(path: Path | None) -> bool:
    """Whether a file has [tokens]. What cannot be read is for others to say."""
    import tomllib

    try:
        return path is not None and "tokens" in tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False


def run_tokens(args: argparse.Namespace) -> int:
    """Simulate every combination and print. ConfigError says what to change."""
    from arlo.simulator.tokens.file import load_tokens
    from arlo.simulator.tokens.run import check_policy

    spec = load_tokens(args.file)
    given = _given(args)
    for policy in given["tokens"]:
        check_policy(spec, policy)
    runs = []
    for values in itertools.product(*(given.get(name, [None]) for name in SWEPT)):
        chosen = {name: value for name, value in zip(SWEPT, values, strict=True) if value is not None}
        rest = {name: values[0] for name, values in given.items() if name not in SWEPT}
        runs.append((chosen, _one(spec, chosen | rest)))
    _print(runs, args)
    return 0


def _given(args: argparse.Namespace) -> dict[str, list[Any]]:
    from arlo.cli.simulate.flags import flags, values_of

    given: dict[str, list[Any]] = {"tokens": [part.strip() for part in (args.tokens or DEFAULT_POLICY).split(",")]}
    for name in ("find_workers", "attainment", "plot", "record", "save", "price", "jobs"):
        if getattr(args, name):
            raise ConfigError(f"--{name.replace('_', '-')} does not go with a file of token counts: leave it out")
    for flag in flags():
        text = getattr(args, flag.name)
        if text is None or flag.name == "tokens":
            continue
        if flag.key not in TRAFFIC | OTHERS | LENGTHS:
            raise ConfigError(f"{flag.option} does not go with a file of token counts: leave it out")
        given[flag.key] = list(values_of(flag, text))
    return given


def _one(spec: TokenSpec, chosen: dict[str, Any]) -> TokenResult:
    import numpy as np

    from arlo.simulator.tokens.run import draw_kinds, run
    from arlo.traces import make_workload, materialise

    flags = {name: chosen[name] for name in TRAFFIC | LENGTHS if name in chosen}
    if flags.keys() & {"trace", "counts", "segment"}:  # in place of what the file has
        replaced = {"arrivals", "rate", "duration_s", "trace", "counts", "segment"}
        flags = dict.fromkeys(replaced | LENGTHS if "trace" in flags else replaced) | flags
    spec = dataclasses.replace(spec, workload=dataclasses.replace(spec.workload, **flags))
    section = spec.workload
    traffic: dict[str, Any] = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    del traffic["bulk_share"]
    if section.drawn:
        traffic["rate"] = DEFAULT_RATE if section.rate is None else section.rate
        traffic["duration_s"] = section.duration_s or DEFAULT_DURATION_S
    if section.trace is None:
        traffic["length"] = section.length or ("paper" if spec.by_length else "fixed:1")
        traffic["rescale"] = section.rescale or (spec.length if spec.by_length and section.length is None else None)
    seed = chosen.get("seed", 0)
    trace = materialise(make_workload(seed=seed, **traffic))
    arrived = np.round(trace.arrived_at_s * 1e9).astype(np.int64)
    return run(
        spec,
        chosen["tokens"],
        arrived,
        draw_kinds(spec, len(arrived), seed),
        lengths=trace.length if spec.by_length else None,
        workers=chosen.get("workers", 1),
        seed=seed,
        warmup_s=chosen.get("warmup_s", 0.0),
    )


def _print(runs: Sequence[tuple[dict[str, Any], TokenResult]], args: argparse.Namespace) -> None:
    from arlo.cli.text import print_json

    if args.json:
        made = [{"run": chosen, **result.as_dict()} for chosen, result in runs]
        print_json(made[0] if len(made) == 1 else {"runs": made})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=None, box=None)
    drawn = ("joules",) if any(result.joules is not None for _, result in runs) else ()
    for title in ("run", "queries", "utility", "of all", "accurate", "wrong", "late", "evicted", "tokens", *drawn):
        table.add_column(title, justify="left" if title in ("run", "tokens") else "right")
    for chosen, result in runs:
        most = sorted(result.rows.items(), key=lambda item: -item[1])[:3]
        executed = max(1, sum(result.rows.values()))
        table.add_row(
            ", ".join(
                f"{value:g} req/s" if name == "rate" and not isinstance(value, str) else str(value)
                for name, value in chosen.items()
            ),
            f"{result.queries:,}",
            f"{result.utility:,.0f}",
            f"{result.utility_share:.1%}",
            *(f"{share:.1%}" for share in result.outcomes.values()),
            ", ".join(f"{tokens} {count / executed:.0%}" for tokens, count in most if count),
            *("-" if result.joules is None else f"{result.joules:.3g}" for _ in drawn),
        )
    Console(highlight=False).print(table)
