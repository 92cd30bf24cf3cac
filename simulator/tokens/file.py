"""A file with [tokens]: a body at several token counts, its kinds of queries, and their mix.

Tables are [tokens], [[tokens.variant]], [tokens.accuracy], [tokens.bin_accuracy], [[tokens.query]], and [workload] as
in any scenario (docs/adapt.md). An unknown key is an error that names the nearest existing one.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from arlo.catalog.flow import MAX_JOULE, MAX_WATTS
from arlo.config.load import read_section
from arlo.errors import ConfigError
from arlo.simulator.scenario.sections import WorkloadSection
from arlo.traces.lengths import Lengths, parse_length_spec

MOST_MS = 3_600_000.0  # of a batch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenVariant:
    """The body at one token count."""

    tokens: int  # added to (above 0) or taken from (below 0) each layer
    latency: tuple[tuple[int, float], ...]  # (rows, ms of the batch), rows ascending; of full rows of the longest
    shorter: tuple[tuple[int, tuple[tuple[int, float], ...]], ...] = ()  # the same by maximum length, ascending
    length: int = 1  # maximum one of the longest, tokens
    watts: float | None = None  # that a worker draws beyond idle while it executes a batch; None: the body's

    @property
    def engines(self) -> tuple[tuple[int, tuple[tuple[int, float], ...]], ...]:
        """(maximum length, latency), ascending: a row takes the shortest that it fits."""
        return (*self.shorter, (self.length, self.latency))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueryKind:
    """Queries that are alike."""

    task: str
    slo_ms: float
    utility: float  # of an accurate answer in time
    share: float = 1.0  # of the queries, relative to the other kinds' shares


@dataclasses.dataclass(frozen=True, kw_only=True)  # no slots: a cached property
class TokenSpec:
    """A body, its queries, and the parameters of OTAS, section V."""

    name: str
    variants: tuple[TokenVariant, ...]  # by tokens
    accuracy: Mapping[str, tuple[float, ...]]  # of each task, by variant
    queries: tuple[QueryKind, ...]
    bins: tuple[int, ...] = ()  # ends of length bins in tokens, ascending, the last open above
    bin_accuracy: Mapping[str, tuple[tuple[float, ...], ...]] = dataclasses.field(default_factory=dict)
    # of each task, by variant, in each bin; a task that it lacks is as accurate at any length
    batch: int = 64  # epsilon: most queries of a batch
    delta_ms: float = 500.0  # a batch takes queries this long after its first
    eta_ms: float = 500.0  # deadlines of a batch differ by at most this
    mu: float = 0.8  # utilities of a batch differ by at most this
    beta: int = 5  # Algorithm 3 decides up to this many batches,
    initial_s: float = 2.0  # and in this time
    kappa: float = 0.8  # Algorithm 3: a batch worth more on average gets the most tokens
    window_s: float = 1.0  # printed: window of the rates
    horizon_s: float = 5.0  # price: window of the rates, and time to finish the waiting queries in; some SLOs
    share: float = 1.0  # price: of the workers' time that may be sold
    watts: float = 0.0  # of counts without their own; 0: not known
    joule: float = 0.0  # price: utility of a joule that is not spent; 0: energy is ignored
    workload: WorkloadSection = dataclasses.field(default_factory=WorkloadSection)

    def __post_init__(self) -> None:
        """ConfigError says what to change."""
        tokens = [variant.tokens for variant in self.variants]
        if not tokens or tokens != sorted(set(tokens)):
            raise ConfigError("[tokens]: [[tokens.variant]] must ascend by tokens, each count once")
        for variant in self.variants:
            for _, latency in variant.engines:
                rows = [row for row, _ in latency]
                if not rows or rows != sorted(set(rows)) or rows[0] < 1:
                    raise ConfigError(
                        f"tokens = {variant.tokens}: latency is [[rows, ms], ...], or [[length, rows, ms], ...] by "
                        "maximum length, rows ascending from 1"
                    )
                if not all(0 < ms <= MOST_MS for _, ms in latency):
                    raise ConfigError(f"tokens = {variant.tokens}: latency is in ms, above 0, at most an hour")
            if variant.length != self.length:
                raise ConfigError(
                    f"tokens = {variant.tokens}: the longest rows have {self.length} tokens at other counts: every "
                    "count takes every row"
                )
        if not self.queries:
            raise ConfigError("[tokens] has no [[tokens.query]]: what do queries ask for?")
        for query in self.queries:
            if query.task not in self.accuracy:
                raise ConfigError(f"[tokens.accuracy] has no task {query.task!r}")
            if query.slo_ms <= 0 or query.utility < 0 or query.share <= 0:
                raise ConfigError(f"query of {query.task!r}: slo_ms and share must be above 0, utility at least 0")
        for task, shares in self.accuracy.items():
            if len(shares) != len(tokens) or not all(0 <= share <= 1 for share in shares):
                raise ConfigError(f"[tokens.accuracy] {task}: {len(tokens)} numbers of 0 to 1, one for each variant")
        if list(self.bins) != sorted(set(self.bins)) or (self.bins and self.bins[0] < 1):
            raise ConfigError("[tokens]: bins must ascend from 1 token")
        for task, by_variant in self.bin_accuracy.items():
            good = len(by_variant) == len(tokens) and all(len(each) == len(self.bins) for each in by_variant)
            if task not in self.accuracy or not good or not all(0 <= one <= 1 for each in by_variant for one in each):
                raise ConfigError(
                    f"[tokens.bin_accuracy] {task}: of a task of [tokens.accuracy], {len(tokens)} arrays, one for each "
                    f"variant, each of {len(self.bins)} numbers of 0 to 1, one for each of bins"
                )
        if bool(self.bins) != bool(self.bin_accuracy):
            raise ConfigError("[tokens]: bins and [tokens.bin_accuracy] go together")
        if self.bins and self.length == 1:
            raise ConfigError("[tokens]: with bins, latency is [[length, rows, ms], ...] by maximum length")
        if not self.by_length and (self.workload.length or self.workload.rescale or self.workload.drift):
            raise ConfigError(
                "[workload]: lengths make no difference to this body: say its latency as [[length, rows, ms], ...], "
                "and its accuracy by bins, or leave them out"
            )
        if self.workload.bulk_share:
            raise ConfigError("[workload]: bulk_share does not go with [tokens]: leave it out")
        for name in ("delta_ms", "eta_ms", "mu", "kappa", "initial_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"[tokens]: {name} must be at least 0")
        for name in ("window_s", "horizon_s", "share", "batch"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"[tokens]: {name} must be above 0")
        if not all(0 <= watts <= MAX_WATTS for watts in (self.watts, *self.watts_of)):
            raise ConfigError(f"[tokens]: watts must be 0 to {MAX_WATTS}, also of a variant")
        if not 0 <= self.joule <= MAX_JOULE:
            raise ConfigError(f"[tokens]: joule must be 0 to {MAX_JOULE}")
        if self.joule > 0 and not self.metered:
            raise ConfigError("[tokens]: joule needs the watts of every count: without them one would draw nothing")

    @property
    def tokens(self) -> list[int]:
        """The token counts, ascending."""
        return [variant.tokens for variant in self.variants]

    @property
    def watts_of(self) -> list[float]:
        """By variant."""
        return [self.watts if variant.watts is None else variant.watts for variant in self.variants]

    @property
    def metered(self) -> bool:
        """Whether it is known what every count draws."""
        return all(watts > 0 for watts in self.watts_of)

    @property
    def length(self) -> int:
        """Tokens of the longest rows that are taken; 1: rows have no lengths."""
        return self.variants[0].length

    @property
    def by_length(self) -> bool:
        """Whether rows have lengths."""
        return self.length > 1

    @functools.cached_property
    def lengths(self) -> Lengths:
        """Lengths of the queries, as [workload] draws them without a trace; longer ones are cut to the longest."""
        return parse_length_spec(self.workload.length or "paper", self.workload.rescale or self._stretched)

    @property
    def _stretched(self) -> int | None:
        return None if self.workload.length else self.length

    def accuracy_of(self, task: str) -> list[tuple[float, ...]]:
        """By variant in each length bin, or one for all."""
        return list(self.bin_accuracy.get(task, ())) or [(one,) * max(1, len(self.bins)) for one in self.accuracy[task]]

    def capacity(self, tokens: int) -> float:
        """Queries per second that a worker carries at one token count, in the best batches of rows that take the same
        engine."""
        engines = self.variants[self.tokens.index(tokens)].engines
        rates = [max(1000 * rows / ms for rows, ms in latency if rows <= self.batch) for _, latency in engines]
        if len(rates) == 1:
            return rates[0]
        of = np.searchsorted([length for length, _ in engines[:-1]], self.lengths.tokens)
        return float(1 / (1 / np.array(rates))[of].mean())


def load_tokens(path: Path) -> TokenSpec:
    """Read and check a file. ConfigError says what to change and where."""
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: give the path of a TOML file with [tokens]") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from None
    try:
        if extra := sorted(raw.keys() - {"tokens", "workload"}):
            raise ConfigError(f"[{extra[0]}] does not go with [tokens]: there is [workload]")
        workload = read_section(WorkloadSection, "workload", raw.get("workload", {}), path.absolute().parent)
        return dataclasses.replace(read_tokens(raw.get("tokens")), workload=workload)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_tokens(raw: Any) -> TokenSpec:
    """The table [tokens] of a file that was read."""
    values = dict(_table(raw, "[tokens]", TokenSpec, {"variant", "query", "variants", "queries"}))
    if "workload" in values:
        raise ConfigError("[tokens]: workload is a table of its own, [workload]")
    for wrong in ("variants", "queries"):
        if wrong in values:
            raise ConfigError(f"[tokens]: {wrong} is written [[tokens.{wrong.removesuffix('s').replace('ie', 'y')}]]")
    variants = values.pop("variant", [])
    queries = values.pop("query", [])
    try:
        return TokenSpec(
            name=str(values.pop("name", "tokens")),
            variants=tuple(map(_variant, variants)),
            accuracy={str(task): tuple(map(float, each)) for task, each in dict(values.pop("accuracy", {})).items()},
            queries=tuple(QueryKind(**_table(each, "[[tokens.query]]", QueryKind)) for each in queries),
            bins=tuple(map(int, values.pop("bins", []))),
            bin_accuracy={
                str(task): tuple(tuple(map(float, each)) for each in by_variant)
                for task, by_variant in dict(values.pop("bin_accuracy", {})).items()
            },
            **values,
        )
    except KeyError as error:
        raise ConfigError(f"[tokens]: {error.args[0]} is missing") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[tokens]: {error}") from None


def _variant(raw: Any) -> TokenVariant:
    each = _table(raw, "[[tokens.variant]]", TokenVariant)
    for key in each:
        if key not in ("tokens", "latency", "watts"):
            raise ConfigError(f"[[tokens.variant]]: {key} is said by latency: [[length, rows, ms], ...]")
    by_length: dict[int, list[tuple[int, float]]] = {}
    for point in each["latency"]:
        length, rows, ms = point if len(point) == 3 else (1, *point)
        by_length.setdefault(int(length), []).append((int(rows), float(ms)))
    *shorter, (longest, latency) = sorted((length, tuple(points)) for length, points in by_length.items())
    watts = None if each.get("watts") is None else float(each["watts"])
    return TokenVariant(
        tokens=int(each["tokens"]), latency=latency, shorter=tuple(shorter), length=longest, watts=watts
    )


def _table(raw: Any, where: str, kind: type, more: set[str] = frozenset()) -> Mapping[str, Any]:  # type: ignore[assignment]
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where} must be a table")
    known = {field.name for field in dataclasses.fields(kind)} | more
    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise ConfigError(f"{where}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return raw
