"""A file with [tokens]: a body at several token counts, what queries are like, and how they are put together.

Tables are [tokens], [[tokens.variant]], [tokens.accuracy] and [[tokens.query]] (docs/tokens.md). An unknown key is an
error with the nearest one that exists.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arlo.errors import ConfigError

MOST_MS = 3_600_000.0  # of a batch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenVariant:
    """The body at one token count."""

    tokens: int  # added to (above 0) or taken from (below 0) each layer
    latency: tuple[tuple[int, float], ...]  # (rows, ms of the batch), rows ascending


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueryKind:
    """Queries that are alike."""

    task: str
    slo_ms: float
    utility: float  # of an accurate answer in time
    share: float = 1.0  # of the queries, beside the other kinds'


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpec:
    """A body, its queries, and the parameters of OTAS, section V."""

    name: str
    variants: tuple[TokenVariant, ...]  # by tokens
    accuracy: Mapping[str, tuple[float, ...]]  # of each task, by variant
    queries: tuple[QueryKind, ...]
    batch: int = 64  # epsilon: most queries of a batch
    delta_ms: float = 500.0  # a batch takes queries this long after its first
    eta_ms: float = 500.0  # deadlines of a batch differ by at most this
    mu: float = 0.8  # utilities too
    beta: int = 5  # Algorithm 3 decides up to this many batches,
    initial_s: float = 2.0  # and in this time
    kappa: float = 0.8  # Algorithm 3: a batch worth more on average gets the most tokens
    by_rate: tuple[tuple[float, int], ...] = ()  # (queries per second, tokens up to it), ascending; beyond: the fewest
    window_s: float = 1.0  # printed, load: that rates are of
    horizon_s: float = 5.0  # price: that rates are of, and in which what waits shall be through; some SLOs
    share: float = 1.0  # price: of the workers' time that may be sold
    switch_ms: float = 0.0  # that another variant than the one before costs
    spread: float = 0.0  # of the logarithm of a factor on execution times

    def __post_init__(self) -> None:
        """ConfigError says what to change."""
        tokens = [variant.tokens for variant in self.variants]
        if not tokens or tokens != sorted(set(tokens)):
            raise ConfigError("[tokens]: [[tokens.variant]] must ascend by tokens, each count once")
        for variant in self.variants:
            rows = [row for row, _ in variant.latency]
            if not rows or rows != sorted(set(rows)) or rows[0] < 1:
                raise ConfigError(f"tokens = {variant.tokens}: latency is [[rows, ms], ...], rows ascending from 1")
            if not all(0 < ms <= MOST_MS for _, ms in variant.latency):
                raise ConfigError(f"tokens = {variant.tokens}: latency is in ms, above 0, at most an hour")
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
        for rate, count in self.by_rate:
            if count not in tokens or not rate > 0:
                raise ConfigError(f"by_rate: [queries per second, tokens], tokens of a variant, not [{rate}, {count}]")
        for name in ("delta_ms", "eta_ms", "mu", "kappa", "initial_s", "switch_ms"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"[tokens]: {name} must be at least 0")
        for name in ("window_s", "horizon_s", "share", "batch"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ConfigError(f"[tokens]: {name} must be above 0")
        if not 0 <= self.spread <= 1:
            raise ConfigError("[tokens]: spread must be from 0 to 1")

    @property
    def tokens(self) -> list[int]:
        """The token counts, ascending."""
        return [variant.tokens for variant in self.variants]

    def capacity(self, tokens: int) -> float:
        """Queries per second that a worker carries at one token count, in the best batches."""
        latency = self.variants[self.tokens.index(tokens)].latency
        return max(1000 * rows / ms for rows, ms in latency if rows <= self.batch)


def load_tokens(path: Path) -> TokenSpec:
    """Read and check a file. ConfigError says what to change and where."""
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: give the path of a TOML file with [tokens]") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from None
    try:
        return read_tokens(raw.get("tokens"))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_tokens(raw: Any) -> TokenSpec:
    """The table [tokens] of a file that was read."""
    values = dict(_table(raw, "[tokens]", TokenSpec, {"variant", "query", "variants", "queries"}))
    for wrong in ("variants", "queries"):
        if wrong in values:
            raise ConfigError(f"[tokens]: {wrong} is written [[tokens.{wrong.removesuffix('s').replace('ie', 'y')}]]")
    variants = values.pop("variant", [])
    queries = values.pop("query", [])
    try:
        return TokenSpec(
            name=str(values.pop("name", "tokens")),
            variants=tuple(
                TokenVariant(
                    tokens=int(each["tokens"]), latency=tuple((int(rows), float(ms)) for rows, ms in each["latency"])
                )
                for each in (_table(each, "[[tokens.variant]]", TokenVariant) for each in variants)
            ),
            accuracy={str(task): tuple(map(float, each)) for task, each in dict(values.pop("accuracy", {})).items()},
            queries=tuple(QueryKind(**_table(each, "[[tokens.query]]", QueryKind)) for each in queries),
            by_rate=tuple((float(rate), int(tokens)) for rate, tokens in values.pop("by_rate", [])),
            **values,
        )
    except KeyError as error:
        raise ConfigError(f"[tokens]: {error.args[0]} is missing") from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"[tokens]: {error}") from None


def _table(raw: Any, where: str, kind: type, more: set[str] = frozenset()) -> Mapping[str, Any]:  # type: ignore[assignment]
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where} must be a table")
    known = {field.name for field in dataclasses.fields(kind)} | more
    for key in raw:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise ConfigError(f"{where}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    return raw
