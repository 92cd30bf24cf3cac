"""A file with [tokens]: a body at several token counts, its kinds of queries, and their mix.

Tables are [tokens], [[tokens.variant]], [tokens.accuracy], [tokens.bin_accuracy], [[tokens.query]], and [workload] as
in any scenario (docs/adapt.md).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from arlo.catalog.flow import MAX_JOULE, MAX_WATTS
from arlo.config.field import FieldError, option, section
from arlo.config.load import read_section, read_text, read_toml
from arlo.errors import ConfigError
from arlo.simulator.scenario.sections import WorkloadSection
from arlo.traces.lengths import Lengths, parse_length_spec

MOST_MS = 3_600_000.0  # of a batch
MOST = 1e9
NO_LENGTHS = (
    "lengths make no difference to this body: say its latency as [[length, rows, ms], ...], and its accuracy by bins, "
    "or leave them out"
)
Latency = tuple[tuple[int, float], ...]  # (rows, ms of the batch), rows ascending


@section("tokens.variant")
class TokenVariant:
    """The body at one token count."""

    tokens: int = option(doc="Added to (above 0) or taken from (below 0) each layer.")
    latency: tuple[tuple[float, ...], ...] = option(
        doc="Of full batches: `[[rows, ms], ...]`, or `[[length, rows, ms], ...]` by maximum length."
    )
    watts: float | None = option(
        default=None,
        doc="That a worker draws beyond idle while it executes a batch.",
        left_out="the body's",
        unit="W",
        minimum=0,
        maximum=MAX_WATTS,
    )

    def check_relations(self) -> None:
        for _, latency in self.engines if all(len(point) in (2, 3) for point in self.latency) else [(0, ())]:
            rows = [row for row, _ in latency]
            if not rows or rows != sorted(set(rows)) or rows[0] < 1 or not all(0 < ms <= MOST_MS for _, ms in latency):
                raise FieldError(
                    "tokens.variant",
                    "latency",
                    f"of {self.tokens} is [[rows, ms], ...], or [[length, rows, ms], ...] by maximum length, rows "
                    "ascending from 1, ms above 0 and at most an hour",
                )

    @functools.cached_property
    def engines(self) -> tuple[tuple[int, Latency], ...]:
        """(maximum length, latency), ascending: a row takes the shortest that it fits. 1: rows have no lengths."""
        found: dict[int, Latency] = {}
        for *length, rows, ms in self.latency:
            at = int(length[0]) if length else 1
            found[at] = (*found.get(at, ()), (int(rows), ms))
        return tuple(sorted(found.items()))


@section("tokens.query")
class QueryKind:
    """Queries that are alike."""

    task: str = option(doc="A task of [tokens.accuracy].")
    slo_ms: float = option(doc="Latency within which an answer earns anything.", unit="ms", above=0, maximum=MOST)
    utility: float = option(doc="Of an accurate answer in time.", minimum=0, maximum=MOST)
    share: float = option(default=1.0, doc="Of the queries, relative to the other kinds.", above=0, maximum=MOST)


@section("tokens")
class TokenSpec:
    """A body, its queries, and the parameters of OTAS, section V."""

    name: str = option(default="tokens", doc="What tables call it.")
    variants: tuple[TokenVariant, ...] = option(doc="By tokens.")
    accuracy: Mapping = option(doc="Of each task, by variant.")  # type: ignore[type-arg]
    queries: tuple[QueryKind, ...] = option(doc="Their kinds.")
    bins: tuple[int, ...] = option(
        default=(), doc="Ends of length bins, ascending, the last open above.", unit="tokens", minimum=1
    )
    bin_accuracy: Mapping = option(  # type: ignore[type-arg]
        factory=dict, doc="Of each task, by variant, in each bin; a task that it lacks is as accurate at any length."
    )
    batch: int = option(default=64, doc="Epsilon: most queries of a batch.", above=0)
    delta_ms: float = option(
        default=500.0, doc="A batch takes queries this long after its first.", unit="ms", minimum=0, maximum=MOST
    )
    eta_ms: float = option(
        default=500.0, doc="Deadlines of a batch differ by at most this.", unit="ms", minimum=0, maximum=MOST
    )
    mu: float = option(default=0.8, doc="Utilities of a batch differ by at most this.", minimum=0, maximum=MOST)
    beta: int = option(default=5, doc="Algorithm 3 decides up to this many batches,")
    initial_s: float = option(default=2.0, doc="and in this time.", unit="s", minimum=0, maximum=MOST)
    kappa: float = option(
        default=0.8, doc="Algorithm 3: a batch worth more on average gets the most tokens.", minimum=0, maximum=MOST
    )
    window_s: float = option(default=1.0, doc="printed: window of the rates.", unit="s", above=0, maximum=MOST)
    horizon_s: float = option(
        default=5.0,
        doc="price: window of the rates, and time to finish the waiting queries in; some SLOs.",
        unit="s",
        above=0,
        maximum=MOST,
    )
    share: float = option(default=1.0, doc="price: of the workers' time that may be sold.", above=0, maximum=MOST)
    watts: float = option(
        default=0.0, doc="Of counts without their own; 0: not known.", unit="W", minimum=0, maximum=MAX_WATTS
    )
    joule: float = option(
        default=0.0,
        doc="price: utility of a joule that is not spent; 0: energy is ignored.",
        minimum=0,
        maximum=MAX_JOULE,
    )
    workload: WorkloadSection = option(factory=WorkloadSection, doc="The section [workload] of the file.")

    def check_relations(self) -> None:
        counts = len(self.tokens)
        for key, wrong, problem in (
            ("variant", not counts or self.tokens != sorted(set(self.tokens)), "must ascend by tokens, each once"),
            ("variant", len({each.engines[-1][0] for each in self.variants}) > 1, "have not the same longest rows: "
             "every count takes every row"),
            ("query", not self.queries, "is needed: what do queries ask for?"),
            ("bins", list(self.bins) != sorted(set(self.bins)), "must ascend"),
            ("bins", bool(self.bins) != bool(self.bin_accuracy), "and [tokens.bin_accuracy] go together"),
            ("bins", bool(self.bins) and not self.by_length, "need latency as [[length, rows, ms], ...]"),
            ("joule", self.joule > 0 and not self.metered, "needs the watts of every count"),
        ):  # fmt: skip
            if wrong:
                raise FieldError("tokens", key, problem)
        for query in self.queries:
            if query.task not in self.accuracy:
                raise FieldError("tokens", "accuracy", f"has no task {query.task!r}")
        for task, shares in self.accuracy.items():
            if not _shares(shares, counts):
                raise FieldError("tokens", "accuracy", f"of {task}: {counts} numbers of 0 to 1, one for each variant")
        for task, by_variant in self.bin_accuracy.items():
            good = isinstance(by_variant, tuple) and len(by_variant) == counts
            if task not in self.accuracy or not good or not all(_shares(each, len(self.bins)) for each in by_variant):
                raise FieldError(
                    "tokens",
                    "bin_accuracy",
                    f"of {task}: of a task of [tokens.accuracy], {counts} arrays, one for each variant, each of "
                    f"{len(self.bins)} numbers of 0 to 1, one for each of bins",
                )
        if not self.by_length and (self.workload.length or self.workload.rescale or self.workload.drift):
            raise ConfigError(f"[workload]: {NO_LENGTHS}")
        if self.workload.bulk_share:
            raise ConfigError("[workload]: bulk_share does not go with [tokens]: leave it out")

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
        return max((variant.engines[-1][0] for variant in self.variants), default=1)

    @property
    def by_length(self) -> bool:
        """Whether rows have lengths."""
        return self.length > 1

    @functools.cached_property
    def lengths(self) -> Lengths:
        """Lengths of the queries, as [workload] draws them without a trace; longer ones are cut to the longest."""
        stretched = None if self.workload.length else self.length
        return parse_length_spec(self.workload.length or "paper", self.workload.rescale or stretched)

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


def _shares(values: Any, count: int) -> bool:
    known = isinstance(values, tuple) and len(values) == count
    return known and all(isinstance(one, int | float) and 0 <= one <= 1 for one in values)


def _tuples(value: Any) -> Any:
    """Arrays of a file as tuples, at any depth."""
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def load_tokens(path: Path) -> TokenSpec:
    """Read and check a file. ConfigError says what to change and where."""
    raw, base = read_toml(read_text(path, "[tokens]"), str(path)), path.absolute().parent
    try:
        if extra := sorted(raw.keys() - {"tokens", "workload"}):
            raise ConfigError(f"[{extra[0]}] does not go with [tokens]: there is [workload]")
        given = dict(raw.get("tokens", {}))
        if wrong := sorted(given.keys() & {"variants", "queries", "workload"}):
            raise ConfigError(f"tokens.{wrong[0]} is written [[tokens.variant]], [[tokens.query]] or [workload]")
        for name, kind, key in (("variant", TokenVariant, "variants"), ("query", QueryKind, "queries")):
            given[key] = tuple(read_section(kind, f"tokens.{name}", each, base) for each in given.pop(name, []))
        for key in given.keys() & {"accuracy", "bin_accuracy"}:
            given[key] = _tuples(given[key])
        given["workload"] = read_section(WorkloadSection, "workload", raw.get("workload", {}), base)
        found: TokenSpec = read_section(TokenSpec, "tokens", given, base)
        return found
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
