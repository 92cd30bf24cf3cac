"""Decides the number of workers: one decision at a time, from past statistics. Pure; `now_s` is an argument.

`target` is the paper's (section 4): a worker more when the p98 latency reaches 95 % of the SLO, one less when it stayed
below 50 % for 60 s. `headroom` is the horizontal heuristic of INFaaS (Romero et al., USENIX ATC 2021; the constants are
those of its published autoscaler): one more replica when the load leaves less than 5 % of spare capacity, one less when
the load has fitted on one fewer for a number of checks in a row. Both need additions for real workers:

- A requested worker takes a while to serve, and the latency until then says nothing about the cluster
  with it. No worker is added by latency until the last one serves and the latency window lies after that moment.
- Percentiles of a few rows are no reason to add, and a stop of all answers is no sign of little traffic.
- Rows that got no answer (they expired, or were refused as they could not be answered in time) are slower than any
  answer: percentiles of the answers alone would show the worst overload as calm.
- A worker stays when the load would not fit on one fewer, and when it is the last with the longest runtime.
- A release that had to be taken back is not tried again at that load for ten periods (`target`).
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from arlo.errors import ConfigError
from arlo.planning.view import WorkerView

UNANSWERED = 0.02  # share of rows without an answer from which the p98 of all has none


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Observations at one moment."""

    now_s: float  # of any clock that never goes back
    slo_ms: float
    p98_ms: float  # of the rows answered in the last window; any number without rows
    rows: int  # answered in the last window
    unanswered: int = 0  # rows that expired, or were refused for lack of capacity, in the last window
    arrived: int | None = None  # rows that arrived in the last window, with any outcome; None: not known
    load: float  # arriving work: instance-seconds per second, each row at its latency on its ideal runtime
    workers: Sequence[WorkerView]  # all, in the order they were added; starting ones are not usable
    longest: str  # the longest runtime
    planned: int | None = None  # workers that a flow's planner wants; None: there is no such planner, or no plan yet
    kept: frozenset[str] = frozenset()  # other runtimes whose last worker stays, as each serves a model alone

    @property
    def ended(self) -> int:
        """Rows of the last window that were answered, or should have been."""
        return self.rows + self.unanswered

    @property
    def slowest_ms(self) -> float:
        """The p98 latency of all rows that ended; a missing answer counts as infinite."""
        return math.inf if self.unanswered > UNANSWERED * self.ended else self.p98_ms

    @property
    def serving(self) -> list[WorkerView]:
        """Workers with an instance in service."""
        return [worker for worker in self.workers if worker.usable and worker.serving is not None]

    @property
    def capacity(self) -> int:
        """The cluster's instance-seconds per second: its instances in service."""
        return len(self.serving)


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """An action, with the numbers that led to it; `none` has none."""

    action: Literal["none", "add", "remove"]
    worker: str | None  # the worker to remove
    runtime: str | None  # the first runtime of a worker to add
    reason: str


HOLD = Decision("none", None, None, "")


class ScalingPolicy(Protocol):
    """A way to decide. Asked every second or so; remembers its observations and decisions."""

    name: str

    def decide(self, signals: Signals) -> Decision:
        """The decision for this moment. The caller carries it out; a failed add is decided again later."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    """The values of [scaling] in the configuration, and the policies' constants."""

    min_workers: int
    max_workers: int
    scale_out_share: float  # target
    scale_in_share: float  # target
    scale_in_period_s: float
    headroom: float  # share of the load
    cooldown_s: float
    window_s: float = 10.0  # covered by the latency percentiles
    min_rows: int = 50  # below this the p98 is the slowest row of all
    start_limit_s: float = 120.0  # a worker that serves nothing this long after it was requested is not waited for

    def __post_init__(self) -> None:
        if not 1 <= self.min_workers <= self.max_workers:
            raise ConfigError(
                f"scaling needs 1 <= min_workers <= max_workers, not {self.min_workers} and {self.max_workers}"
            )


def make_policy(name: str, **settings: Any) -> ScalingPolicy:
    """The policy `none`, `target`, `headroom` or `plan`; `settings` are the fields of ScalingSettings (`none`
    needs none, and knows max_workers). ConfigError: limits that contradict each other."""
    if name == "none":
        return NoScaling(settings.get("max_workers"))
    kinds: dict[str, type[TargetTracking | Headroom | Planned]] = {
        "target": TargetTracking,
        "headroom": Headroom,
        "plan": Planned,
    }
    return kinds[name](ScalingSettings(**settings))


class NoScaling:
    """Keeps the number of workers, up to `most`: excess workers from an earlier configuration are removed one by
    one."""

    name = "none"

    def __init__(self, most: int | None = None) -> None:
        self._most = most

    def decide(self, signals: Signals) -> Decision:
        """No action while there are at most that many."""
        usable = sum(worker.usable for worker in signals.workers)
        if self._most is not None and usable > self._most:
            return _least_busy(signals, f"{usable} workers are more than the {self._most} of the configuration")
        return HOLD


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """A worker that was requested."""

    at_s: float
    present: frozenset[str]  # workers present at that moment


class _Paced(abc.ABC):
    """The policies' common part: limits, cool-down, workers on their way, and the duration of calm."""

    def __init__(self, settings: ScalingSettings) -> None:
        self.settings = settings
        self._last_s: float | None = None  # of the last decision to add or remove
        self._seen_s: float | None = None  # of the last call
        self._calm_since_s: float | None = None
        self._fresh_s: float | None = None  # from this moment on, the latency window lies after the last growth
        self._coming: list[_Asked] = []  # workers that do not serve yet, oldest first
        self._served: set[str] = set()  # workers that have served

    def decide(self, signals: Signals) -> Decision:
        """The decision for this moment."""
        self._observe(signals)
        decision = self._paced(signals)
        if decision.action != "none":
            self._last_s = signals.now_s
            self._calm_since_s = None
        if decision.action == "add":
            self._coming.append(_Asked(signals.now_s, frozenset(worker.id for worker in signals.workers)))
        return decision

    def _observe(self, signals: Signals) -> None:
        now, limits = signals.now_s, self.settings
        serving = {worker.id for worker in signals.serving}
        fresh = serving - self._served
        # A worker that is gone may come back as a new one with the same name.
        self._served = (self._served & {worker.id for worker in signals.workers}) | serving
        if fresh and self._seen_s is not None:
            self._fresh_s = now + limits.window_s
            self._calm_since_s = None
            del self._coming[: len(fresh)]
        self._coming = [asked for asked in self._coming if now - asked.at_s < limits.start_limit_s]
        # Two calls further apart than the window leave some moments unobserved.
        gap = self._seen_s is not None and now - self._seen_s > limits.window_s
        self._seen_s = now
        if not self._calm(signals):
            self._calm_since_s = None
        elif self._calm_since_s is None or gap:
            self._calm_since_s = now

    def _paced(self, signals: Signals) -> Decision:
        now, limits = signals.now_s, self.settings
        if self._last_s is not None and now - self._last_s < limits.cooldown_s:
            return HOLD
        count = self._count(signals)
        if count < limits.min_workers:
            few = f"{count} workers are fewer than the {limits.min_workers} wanted"
            return Decision("add", None, signals.longest, few)
        if not signals.capacity:
            return HOLD  # no instance is in service, which is no matter of load
        why = self._wants_more(signals)
        if why is not None:
            return Decision("add", None, signals.longest, why) if count < limits.max_workers else HOLD
        why = self._wants_less(signals)
        if self._calm_since_s is None or why is None or now - self._calm_since_s < limits.scale_in_period_s:
            return HOLD
        if sum(worker.usable for worker in signals.workers) <= limits.min_workers:
            return HOLD
        return _least_busy(signals, f"{why} for {now - self._calm_since_s:.0f} s")

    def _count(self, signals: Signals) -> int:
        """Present workers, and requested ones that are not listed yet."""
        if not self._coming:
            return len(signals.workers)
        listed = {worker.id for worker in signals.workers} - self._coming[0].present - self._served
        return len(signals.workers) + max(0, len(self._coming) - len(listed))

    @abc.abstractmethod
    def _calm(self, signals: Signals) -> bool:
        """Whether a worker less would be right by the present signals."""

    @abc.abstractmethod
    def _wants_more(self, signals: Signals) -> str | None:
        """The reason why a worker more is right; None when it is not."""

    @abc.abstractmethod
    def _wants_less(self, signals: Signals) -> str | None:
        """The condition that has lasted as long as the calm; None when there is no calm."""


class TargetTracking(_Paced):
    """Compares the p98 latency of recent requests with the SLO (paper, section 4)."""

    name = "target"

    def __init__(self, settings: ScalingSettings) -> None:
        super().__init__(settings)
        self._released: tuple[int, float] | None = None  # capacity after the last release, load at it
        self._wrong: tuple[int, float] | None = None  # the same for a release that had to be reverted
        self._wrong_until_s = 0.0

    def decide(self, signals: Signals) -> Decision:
        """The decision for this moment."""
        decision = super().decide(signals)
        if decision.action == "remove":
            self._released = signals.capacity - 1, signals.load
        elif decision.action == "add" and self._released is not None:
            capacity, load = self._released
            if signals.capacity <= capacity and signals.load <= 1.1 * load:
                self._wrong = self._released
                self._wrong_until_s = signals.now_s + 10 * self.settings.scale_in_period_s
            self._released = None
        return decision

    def _too_tight(self, signals: Signals) -> bool:
        """Whether the cluster should not lose a worker although its latency is low."""
        if signals.load > signals.capacity - 1:
            return True
        if self._wrong is None or signals.now_s >= self._wrong_until_s:
            return False
        capacity, load = self._wrong
        return signals.capacity - 1 <= capacity and signals.load > 0.9 * load

    def _calm(self, signals: Signals) -> bool:
        if not signals.ended:  # arrivals without answers are no calm
            return not signals.arrived
        return signals.slowest_ms < self.settings.scale_in_share * signals.slo_ms

    def _wants_more(self, signals: Signals) -> str | None:
        limits = self.settings
        if signals.ended < limits.min_rows or signals.slowest_ms < limits.scale_out_share * signals.slo_ms:
            return None
        if self._coming or (self._fresh_s is not None and signals.now_s < self._fresh_s):
            return None  # the latency is still the smaller cluster's
        if math.isinf(signals.slowest_ms):
            return _unanswered(signals)
        return (
            f"the p98 latency of {signals.rows} rows is {signals.p98_ms:.1f} ms, at least "
            f"{limits.scale_out_share:.0%} of the SLO of {signals.slo_ms:g} ms"
        )

    def _wants_less(self, signals: Signals) -> str | None:
        if self._coming or not self._calm(signals) or self._too_tight(signals):
            return None
        return f"{_latency(signals)}, below {self.settings.scale_in_share:.0%} of the SLO of {signals.slo_ms:g} ms"


class Headroom(_Paced):
    """Compares the load with the capacity, as the horizontal scaling of INFaaS does."""

    name = "headroom"

    def _wanted(self, signals: Signals) -> float:
        """Instances needed for the load and its headroom."""
        return signals.load * (1 + self.settings.headroom)

    def _calm(self, signals: Signals) -> bool:
        return self._wanted(signals) <= signals.capacity - 1

    def _wants_more(self, signals: Signals) -> str | None:
        capacity = signals.capacity + len(self._coming)
        return f"{self._told(signals)} is above {capacity}" if self._wanted(signals) > capacity else None

    def _wants_less(self, signals: Signals) -> str | None:
        if self._coming or not self._calm(signals):
            return None
        return f"{self._told(signals)} fits on {signals.capacity - 1}"

    def _told(self, signals: Signals) -> str:
        return f"a load of {signals.load:.2f} instances with {self.settings.headroom:.0%} headroom"


class Planned(_Paced):
    """Follows the number that the planner of a flow wants: hardware scaling (Loki, section 4)."""

    name = "plan"

    def _calm(self, signals: Signals) -> bool:
        return signals.planned is not None and signals.planned < signals.capacity

    def _wants_more(self, signals: Signals) -> str | None:
        there = signals.capacity + len(self._coming)
        if signals.planned is None or signals.planned <= there:
            return None
        return f"the plan wants {signals.planned} workers, and there are {there}"

    def _wants_less(self, signals: Signals) -> str | None:
        if self._coming or not self._calm(signals):
            return None
        return f"the plan wants {signals.planned} workers of {signals.capacity}"


def _least_busy(signals: Signals, why: str) -> Decision:
    """Release the least busy instance that may go, preferring one that serves nothing."""
    usable = [worker for worker in signals.workers if worker.usable]
    count = Counter(worker.serving for worker in usable)
    kept = signals.kept | {signals.longest}
    # Of equally busy ones, the youngest.
    choice = [w for w in reversed(usable) if w.serving not in kept or count[w.serving] > 1]
    if not choice:
        return HOLD
    worker = min(choice, key=lambda worker: (worker.serving is not None, worker.busy))
    return Decision("remove", worker.id, None, f"{why}; {worker.id} is the least busy ({worker.busy:.0%})")


def _latency(signals: Signals) -> str:
    if not signals.ended:
        return "there was no request"
    if math.isinf(signals.slowest_ms):
        return _unanswered(signals)
    return f"the p98 latency is {signals.p98_ms:.1f} ms"


def _unanswered(signals: Signals) -> str:
    return f"{signals.unanswered} of {signals.ended} rows were refused or expired"
