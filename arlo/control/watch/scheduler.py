"""The runtime scheduler (paper, section 3.3): watches the lengths, plans every period, instructs the reconciler.

One task reads the gateway's statistics, ten a second. A plan is made when the period is over, when workers came or
went, or, with control.early, when the traffic has clearly shifted. The decision is the planner's
(arlo.planning.planner); here are the clock, the thread that it solves in, and the order: plans are made one at a time.
One event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from arlo.clock import monotonic_s
from arlo.control.events import emit
from arlo.control.mode import ServingMode
from arlo.control.reconcile import state
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.fleet import GRACE_S
from arlo.control.reconcile.pipeline import traffic_counts
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch.feed import StatsFeed
from arlo.control.watch.orders import Orders
from arlo.planning.placement.assignment import assign
from arlo.planning.planner import Reason
from arlo.planning.traffic.stamp import StampClock
from arlo.planning.view import WorkerView

log = logging.getLogger("arlo.control")


class RuntimeScheduler:
    """See the module. Life: first_placement(), then run() until it is cancelled."""

    def __init__(
        self,
        mode: ServingMode,
        reconciler: Reconciler,
        deployments: Deployments,
        counters: Counter[str],
    ) -> None:
        self._mode = mode
        self._reconciler = reconciler
        self._deployments = deployments
        self._counters = counters
        self.planner = mode.planner()
        self.longest = mode.longest(self.planner.planned)
        self.feed = StatsFeed([model.name for model in mode.config.more_models], mode.whole)
        self._orders = Orders(mode, self.planner, reconciler, longest=self.longest)
        self.plans = self._orders.plans
        self._stamps, self._whole_stamps = StampClock(), StampClock()
        self._planning = asyncio.Lock()  # plans are made one after the other, each from the data known at its start
        self._planned_at_s = monotonic_s()

    # --- queries ---

    @property
    def next_plan_in_s(self) -> float:
        """Seconds until the period is over."""
        return max(0.0, self._planned_at_s + self._mode.period_s - monotonic_s())

    # --- the first placement ---

    def first_placement(self) -> dict[str, str]:
        """The saved placement if it fits, else the configured one, else one for unknown lengths."""
        views = self._reconciler.views()
        usable = [view for view in views if view.usable]
        saved = state.load(self._mode)
        reason: Reason = "start" if saved is None else "restored"
        wanted = Counter(self._from_config() if saved is None else saved.values())
        # Workers beyond the configured ones (added by scaling) take the longest runtime.
        spare = len(usable) - sum(wanted.values())
        if spare > 0 and (saved is not None or self._mode.config.control.reallocate):
            wanted[self.longest] += spare
        ordered = self._orders.ordered(wanted)
        if any(view.serving for view in views) or sum(wanted.values()) > len(usable):
            placement = assign(ordered, views)
        else:
            names = [name for name, count in ordered.items() for _ in range(count)]
            placement = dict(zip((view.id for view in usable), names, strict=False))
        self.planner.count_on(placement)
        note = "" if saved else "as configured" if self._mode.first else self._first_note()
        self._orders.begin(reason, placement, views, note=note)
        return placement

    def _first_note(self) -> str:
        return (
            "for lengths that are not known yet" if self.planner.planned else "the dynamic runtime takes every length"
        )

    def _from_config(self) -> dict[str, int]:
        if self._mode.first is not None:
            return self._mode.first
        workers = self._mode.config.worker_count
        if not self.planner.planned:
            return {self.longest: workers}
        return {r.name: n for r, n in zip(self.planner.planned, self.planner.first(workers), strict=True) if n}

    # --- the loop ---

    async def run(self) -> None:
        """Watch and plan until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.feed.run(lambda: self._deployments.admin, self.see))
            group.create_task(self._plan_on_time())

    async def see(self, stats: Any, model: str | None = None) -> None:
        """Take one arlo.v1.Stats: of a further model, of the cascade or pipeline, or of the first model, which leads to
        a plan at once when it shows different traffic."""
        self.feed.put(stats, model)
        if model is not None:
            if model == self._mode.whole:
                stamp = self._whole_stamps.stamp(stats.started_at_ms, stats.uptime_ns, monotonic_s())
                self.planner.subject.count(stamp.at_s, stamp.started_s, traffic_counts(stats))
            return
        stamp = self._stamps.stamp(stats.started_at_ms, stats.uptime_ns, monotonic_s())
        if (seen := self.feed.snapshot) is None:
            return
        counts = self.planner.subject.joined([each.arrivals_by_length for each in seen.models])
        self.planner.add(stamp.at_s, stamp.started_s, counts)
        if not self._planning.locked():  # otherwise a plan is being made already
            async with self._planning:
                if await self._shifted():
                    await self._plan("shift")

    async def _plan_on_time(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, max(0.05, self.next_plan_in_s)))
            if self._mode.turned(self.planner, self._deployments):
                await self.plan("point")
            reason = self.planner.changed(self._usable(self._views()))
            if reason is not None:
                await self.plan(reason)
            elif self.next_plan_in_s <= 0:
                await self.plan("period")

    def _views(self) -> list[WorkerView]:
        return self._reconciler.views(grace_s=GRACE_S)

    @staticmethod
    def _usable(views: list[WorkerView]) -> list[str]:
        return [view.id for view in views if view.usable]

    async def _shifted(self) -> bool:
        """Whether recent traffic surely differs from the last plan's, and a new plan would pay."""
        candidate = self.planner.candidate(monotonic_s())
        if candidate is None:
            return False
        wanted = self._orders.counts(self._reconciler.desired)
        question = self.planner.weigh(candidate, len(self._usable(self._views())), wanted)
        answer = await asyncio.to_thread(question.solve) if question is not None else None
        return self.planner.settle(candidate, question, answer, monotonic_s())

    # --- planning ---

    async def plan(self, reason: Reason) -> None:
        """Make a plan for the present workers, and have it carried out if it pays.

        Three tasks request plans. They wait for each other: an older plan must not overwrite a newer one's placement.
        """
        async with self._planning:
            await self._plan(reason)

    async def _plan(self, reason: Reason) -> None:
        self._planned_at_s = monotonic_s()
        views = self._views()
        usable = self._usable(views)
        if not usable:
            return
        demand = self.planner.demand()
        begun = self.planner.begin(reason, self._planned_at_s, usable, self._orders.counts(self._reconciler.desired))
        if begun.question is None:
            if begun.forced:
                self._orders.keep(reason, views, demand)
            if (solve := self.planner.subject.routing(len(usable))) is not None:
                self.planner.subject.follow(await asyncio.to_thread(solve))
                await self._mode.tell(self.planner, self._deployments)
            return
        if reason == "point" and begun.question.seen is not None:
            demand = begun.question.seen.demand  # the demand to expect
        plan = self.planner.conclude(begun.question, await asyncio.to_thread(begun.question.solve))
        self._counters["plans"] += 1
        if plan.fell_back:
            self._counters["plan_fallbacks"] += 1
            emit(
                log, "plan_fallback", level=logging.ERROR, solver=self._mode.config.control.solver, error=plan.fell_back
            )
        if plan.allocation.reason:
            self._counters["infeasible_plans"] += 1
            emit(log, "plan_infeasible", level=logging.WARNING, reason=plan.allocation.reason)
        self._orders.follow(plan, views, demand)
        await self._mode.tell(self.planner, self._deployments)
