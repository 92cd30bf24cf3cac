"""The tables of `arlo top`: for each cell its title, its key in the JSON document, the computation, format and colour
of its value, and how soon it goes if there is no room for all.

A column without a value is left out. Rows are made in arlo.cli.top.view.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from arlo.report.numbers import seconds

Document = dict[str, Any]
MOMENTS = ("mean", "p50", "p90", "p98", "p99", "max")
FINISHED = ("on_time", "late", "rejected", "expired", "cancelled", "failed")


class Row:
    """The inputs of one line: counters now and at an earlier moment, the seconds between, and other facts.

    A counter that is new, or smaller than it was, began at 0. Unknown values are None, and so are their results.
    """

    def __init__(self, now: Document, old: Document | None = None, elapsed_s: float = 0.0, **facts: Any) -> None:
        self.now, self.old, self.elapsed_s, self.facts = now, old or {}, elapsed_s, facts

    def __getitem__(self, key: str) -> Any:
        return self.facts[key] if key in self.facts else self.now.get(key)

    def grown(self, key: str) -> Any:
        """How much a counter, or each of a list of counters, grew."""
        value, old = self.now.get(key), self.old.get(key)
        if not isinstance(value, list):
            return value if value is None or old is None or value < old else value - old
        return [each - (old[index] if old and index < len(old) else 0) for index, each in enumerate(value)]

    def total(self, key: str) -> Any:
        """Growth of a counter, or of all counters of a list together."""
        value = self.grown(key)
        return sum(value) if isinstance(value, list) else value

    def rate(self, key: str) -> float | None:
        """Growth per second, of a list in total; None without an interval."""
        value = self.total(key)
        return value / self.elapsed_s if value is not None and self.elapsed_s > 0 else None

    def share(self, part: str, whole: str) -> float | None:
        """Growth of one counter as a share of another's."""
        return ratio(self.total(part), self.total(whole))


def ratio(part: float | None, whole: float | None) -> float | None:
    """The ratio; None if there is no whole."""
    return part / whole if part is not None and whole else None


# --- how values are written, and coloured ---


def number(value: float) -> str:
    """The number with one digit behind the point; none from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def percent(value: float, digits: int = 0) -> str:
    """The value as a percentage; below 100 % it is never shown as 100 %."""
    text = f"{100 * value:.{digits}f}"
    return f">{100 - 10**-digits:.{digits}f} %" if value < 1 and float(text) >= 100 else f"{text} %"


def exactly(value: float) -> str:
    """The value as a percentage if a hundredth matters."""
    return percent(value, 2)


def shares(values: dict[str, float]) -> str:
    """Names and their shares."""
    return ", ".join(f"{name} {percent(share)}" for name, share in values.items())


def plain(value: Any) -> str:
    """The style of a value without a colour."""
    return ""


def warned(value: Any) -> str:
    """The style of a value that should not occur."""
    return "yellow" if value else ""


def below(good: float, fair: float = 1.0) -> Callable[[Any], str]:
    """Green up to `good`, yellow up to `fair`, red above."""
    return lambda value: "green" if value <= good else "yellow" if value <= fair else "red"


def above(value: float) -> str:
    """The colour of an attainment."""
    return "green" if value >= 0.99 else "yellow" if value >= 0.95 else "red"


def step_style(text: str) -> str:
    """At rest, on the move, in trouble."""
    word = text.partition(" ")[0]
    return "green" if word in RESTING else "red" if word in ("failed", "stopped", "ejected") else "yellow"


RESTING = ("steady", "active")
BELOW = 9  # as the rank of a cell: a line below the table in place of a column


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One column. `value` None: the row's value of `key`."""

    title: str
    key: str
    form: Callable[[Any], str] = str
    value: Callable[[Row], Any] | None = None
    style: Callable[[Any], str] = plain
    rank: int = 0  # if there is no room for all, columns of the greatest go first; those of 0 stay

    def of(self, row: Row) -> Any:
        """The value in this row; None: there is none."""
        return self.value(row) if self.value is not None else row[self.key]


def load(row: Row) -> float | None:
    """Demand as a share of what the serving instances carry within the SLO."""
    carried = row["observed"] * row["capacity"] if row["observed"] and row["capacity"] else None
    return ratio(row["demand"], carried)


def step(row: Row) -> str:
    """The worker's step, with the time that it takes already while the worker moves."""
    return row["step"] if row["step"] in RESTING or row["step_s"] is None else f"{row['step']} {seconds(row['step_s'])}"


def padding(row: Row) -> float | None:
    """Share of the computed tokens that are padding."""
    real = row.share("tokens", "computed_tokens")
    return None if real is None else 1 - real


def on_time(row: Row) -> float | None:
    """Rows answered within the SLO, per second."""
    outcomes: Row | None = row["outcomes"]
    return outcomes.rate("on_time") if outcomes is not None else None


def busy(row: Row) -> float | None:
    """Share of the time with at least one row at the worker."""
    value = row.rate("busy_us")
    return min(1.0, value / 1e6) if value is not None else None


def milliseconds(key: str) -> Callable[[Row], float | None]:
    """A cell that shows a value in microseconds, `key`, as milliseconds."""
    return lambda row: row[key] / 1000 if row[key] is not None else None


TABLES: dict[str, tuple[Cell, ...]] = {
    "models": (
        Cell("model", "name"),
        Cell("slo", "slo_ms", lambda value: f"{value} ms", rank=2),
        Cell("want", "desired", rank=2),
        Cell("have", "observed"),
        Cell("rows/s", "rows_per_s", number, lambda row: row.rate("arrivals_by_length")),
        Cell("on time/s", "on_time_per_s", number, on_time, rank=3),
        Cell("attainment", "attainment", exactly, style=above),
        Cell("p98 ms", "p98_ms", number),
        Cell("of slo", "p98_of_slo", percent, lambda row: ratio(row["p98_ms"], row["slo_ms"]), below(0.8)),
        Cell("padding", "padding", percent, padding, rank=2),
        Cell("waiting", "waiting", style=warned),
        Cell("in flight", "in_flight", rank=1),
    ),
    "outcomes": (
        Cell("model", "name"),
        *(Cell(name, name) for name in FINISHED),
        Cell("parked", "parked", style=warned, rank=1),
        Cell("retries", "retries", rank=1),
    ),
    "latency": (
        Cell("model", "name"),
        Cell("part", "part"),
        Cell("rows", "count"),
        *(Cell(name, f"{name}_ms", number, milliseconds(f"{name}_us")) for name in MOMENTS),
    ),
    "stages": (
        Cell("stage", "stage"),
        Cell("rows/s", "rows_per_s", number, lambda row: row.rate(row["came"])),
        Cell("reach", "reach", percent, lambda row: ratio(row.grown(row["came"]), row["entry"])),
        Cell("planned", "planned", percent, rank=1),
        Cell("went on", "went_on", percent, lambda row: row.share("escalations", "visits") or None, rank=1),
        Cell("ended", "ended", percent, lambda row: row.share("ends", "answered")),
        Cell("rerouted", "rerouted", percent, lambda row: row.share("rerouted", "answered"), rank=2),
        Cell("accuracy", "accuracy", exactly, rank=1),
        Cell("price", "price", rank=2),
        Cell("dropped", "dropped", shares, style=lambda value: "red"),
        Cell("by", "by", shares),
    ),
    "lengths": (
        Cell("model", "model"),
        Cell("max_length", "max_length"),
        Cell("want", "desired"),
        Cell("have", "observed"),
        Cell("demand", "demand", number),
        Cell("peak", "peak", number, rank=1),
        Cell("load", "load", percent, load, below(0.7)),
        Cell("arrivals", "share", percent, lambda row: ratio(row.grown("ideal"), row["rows"])),
        Cell("demoted", "demoted", percent, lambda row: row.share("demoted", "dispatched"), rank=1),
        Cell("ms", "latency_ms", lambda value: f"{value:.2f}"),
        Cell("M", "capacity"),
        Cell("runtime", "runtime", rank=4),
    ),
    "workers": (
        Cell("worker", "id"),
        Cell("serves", "serves"),
        Cell("step", "step", value=step, style=step_style),
        Cell("in flight", "in_flight"),
        Cell("queued", "queued", rank=1),
        Cell("busy", "busy", percent, busy, below(0.8, 0.95)),
        Cell("batches/s", "batches_per_s", number, lambda row: row.rate("started")),
        Cell("failed", "failed", style=warned, rank=2),
        Cell("restarts", "restarts", style=warned, rank=1),
        Cell("error", "error", rank=BELOW),
    ),
    "plans": (
        Cell("ago", "ago_s", seconds),
        Cell("why", "reason"),
        Cell("instances", "instances"),
        Cell("moved", "moved"),
        Cell("gain", "gain", lambda value: percent(value, 1)),
        Cell("mean ms", "mean_ms", lambda value: f"{value:.2f}", rank=1),
        Cell("solver", "solver", rank=1),
        Cell("note", "note", rank=BELOW),
    ),
}  # fmt: skip

HEAD = (
    Cell("", "health", style=lambda value: {"ready": "bold green", "degraded": "bold yellow"}.get(value, "bold red")),
    Cell("control plane", "state", style=lambda value: "red" if value == "degraded" else ""),
    Cell("policy", "policy"),
    Cell("deployment", "deployment_version"),
    Cell("up", "uptime_s", seconds),
    Cell("ejections", "ejections", value=lambda row: row["ejections"] or None, style=warned),
    Cell("failed moves", "failed_moves", value=lambda row: row["failed_moves"] or None, style=warned),
    Cell("plan fallbacks", "fallbacks", value=lambda row: row["fallbacks"] or None, style=warned),
)
