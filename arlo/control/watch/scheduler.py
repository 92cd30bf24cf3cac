"""The runtime scheduler (paper, section 3.3): watches the lengths, plans every period, tells the reconciler.

One task reads the gateway's statistics, ten a second. A plan is made when the period is over, when workers came or
went, or, with control.early, when the traffic has clearly shifted (arlo.planning.traffic.shift). Planning runs in a
thread; decisions are those of arlo.planning. One event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from arlo.catalog.manifest import Manifest, Runtime
from arlo.clock import monotonic_s, unix_s
from arlo.config import Config
from arlo.control.events import emit
from arlo.control.http.status import PlanRecord
from arlo.control.reconcile import state
from arlo.control.reconcile.choice import choose
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.placement import Plan, place, plan_from_config
from arlo.control.reconcile.reconciler import Reconciler
from arlo.errors import GatewayError
from arlo.planning.allocation.curves import curve, curves, static_runtimes
from arlo.planning.allocation.problem import Allocation, AllocationProblem, Variation, flow
from arlo.planning.allocation.queueing import burst_factor, predicted_mean_ms
from arlo.planning.allocation.solve import allocate_or_keep, make_solver
from arlo.planning.lengths.advice import dynamic_runtime
from arlo.planning.placement.assignment import assign, changed
from arlo.planning.traffic.demand import Demand, DemandWindow
from arlo.planning.traffic.shift import MIN_ROWS, SAMPLE_S, SHIFT_ROWS, ShiftWatch, least_gain
from arlo.planning.traffic.stamp import StampClock
from arlo.planning.view import WorkerView

log = logging.getLogger("arlo.control")

STATS_MS = round(SAMPLE_S * 1000)
LISTEN_S = 1.0  # between two statistics that others are told of
URGENT_GAIN = 0.5
KEPT_PLANS = 120

Reason = Literal["start", "period", "shift", "scale_out", "scale_in", "worker_lost", "worker_back", "restored"]


class RuntimeScheduler:
    """See the module. Life: first_placement(), then run() until it is cancelled."""

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        reconciler: Reconciler,
        deployments: Deployments,
        counters: Counter[str],
    ) -> None:
        self._config = config
        self._manifest = manifest
        self._reconciler = reconciler
        self._deployments = deployments
        self._counters = counters
        # Here already: what is wrong with it is said before anything is started.
        self._configured = plan_from_config(config, manifest) if config.deployment.instances else None
        self.choice = choose(config, manifest)
        self.static: list[Runtime] = [] if self.choice.serve == "dynamic" else static_runtimes(manifest)
        self._by_name = {runtime.name: runtime for runtime in manifest.runtimes}
        self._curves = curves(self.static)
        self._lengths = tuple(runtime.max_length for runtime in self.static)
        self._window = DemandWindow(window_s=config.control.demand_window_s)
        self._shift = ShiftWatch(self._window, self._lengths, config.model.slo_ms)
        self._listened_s = float("-inf")
        self._stamps = StampClock()
        self._planning = asyncio.Lock()  # plans are made one after the other, each from what is known when it begins
        self._solver = make_solver(
            config.control.solver, objective=config.control.objective, policy=config.dispatch.policy
        )
        self._last: Allocation | None = None
        self._known: Demand | None = None  # of the last plan that was made for requests that came
        self._planned_at_s = monotonic_s()
        self._workers: frozenset[str] = frozenset()  # that the last plan counted on
        self._stats_s: float | None = None  # of the last statistics, on our clock
        self.plans: deque[PlanRecord] = deque(maxlen=KEPT_PLANS)
        self.stats: Any = None  # the last arlo.v1.Stats
        self.listeners: list[Callable[[Any], None]] = []  # called with each arlo.v1.Stats

    # --- what others ask ---

    @property
    def next_plan_in_s(self) -> float:
        """Until the period is over."""
        return max(0.0, self._planned_at_s + self._config.control.period_s - monotonic_s())

    def demand(self) -> Demand:
        """Of the window until now."""
        return self._window.estimate(self._lengths, self._config.model.slo_ms)

    def recent_demand(self, last_s: float) -> Demand:
        """Of the last seconds, at most 10."""
        since_s = None if self._stats_s is None else self._stats_s - last_s
        lengths = self._lengths or (self._by_name[self.longest].max_length,)
        return self._shift.recent.estimate(lengths, self._config.model.slo_ms, since_s=since_s)

    def offered_load(self, last_s: float) -> float:
        """Work that arrives, of the last at most 10 s: instance-seconds per second, each row on its ideal runtime."""
        since_s = None if self._stats_s is None else self._stats_s - last_s
        lengths, times_ms = list(self._lengths), [curve.batch_ms(1) for curve in self._curves]
        if not lengths:  # only dynamic runtimes: by the lengths that their latency was measured at
            runtime = self._by_name[self.longest]
            lengths = sorted({point.length for point in runtime.latency})
            times_ms = [curve(runtime, length).batch_ms(1) for length in lengths]
        demand = self._shift.recent.estimate(lengths, 1000.0, since_s=since_s)
        return sum(q * ms / 1000 for q, ms in zip(demand.mean, times_ms, strict=True))

    def predicted_mean_ms(self, problem: AllocationProblem, instances: Sequence[int]) -> float:
        """Mean latency that the objective in use predicts; infinity where nothing serves the longest requests."""
        if not instances[-1]:
            return float("inf")
        if self._config.control.objective == "queueing":
            return predicted_mean_ms(problem, instances, policy=self._config.dispatch.policy)
        return flow(problem, instances).mean_ms

    def problem(
        self, workers: int, demand: Sequence[float], *, burst: float = 1.0, variation: Variation | None = None
    ) -> AllocationProblem:
        """The allocation problem of this repository."""
        slo_ms = float(self._config.model.slo_ms)
        return AllocationProblem(
            workers, slo_ms, self._lengths, self._curves, tuple(demand), burst=burst, variation=variation
        )

    def _burst(self, demand: Demand) -> float:
        """How much busier bursts are than the mean, for the policies under which telling it paid in measurements."""
        if self._config.dispatch.policy not in ("eft", "late"):
            return 1.0
        # Of all requests: where only the lengths vary, that is the variation's.
        dispersion = self._window.dispersion(self._lengths[-1:])
        return burst_factor(demand.pooled(), dispersion, slo_ms=self._config.model.slo_ms)

    def _variation(self) -> Variation | None:
        """How the lengths that come varied within the window."""
        return self._window.variation(self._lengths)

    # --- the first placement ---

    def first_placement(self) -> dict[str, str]:
        """The saved one where it fits, else that of the configuration, else one for lengths nobody knows yet."""
        views = self._reconciler.views()
        usable = [view for view in views if view.usable]
        saved = state.load(self._config.workers.run_dir, expected=state.fingerprint(self._config, self._manifest))
        reason: Reason = "start"
        if saved is not None:
            wanted = Counter(saved.placement.values())
            reason = "restored"
        else:
            wanted = Counter(self._from_config())
        # Workers beyond those of the configuration (they were added by scaling) take the longest runtime.
        spare = len(usable) - sum(wanted.values())
        if spare > 0 and (saved is not None or self._config.control.reallocate):
            wanted[self.longest] += spare
        if any(view.serving for view in views) or sum(wanted.values()) > len(usable):
            placement = assign(self._ordered(wanted), views)
        else:
            plan = Plan(tuple(self._ordered(wanted).items()))
            placement = place(plan, [view.id for view in usable])
        self._workers = frozenset(placement)
        self._note(
            reason,
            placement,
            views,
            note="" if saved else "as configured" if self._configured else self._first_note(),
        )
        self._save(placement, reason)
        return placement

    def _first_note(self) -> str:
        return "for lengths that nobody knows yet" if self.static else "the dynamic runtime takes every length"

    def _from_config(self) -> dict[str, int]:
        if self._configured is not None:
            return dict(self._configured.instances)
        return self._for_unknown_lengths(self._config.worker_count)

    def _for_unknown_lengths(self, workers: int) -> dict[str, int]:
        """Nobody has asked yet."""
        if not self.static:
            return {self.longest: workers}
        problem = self.problem(workers, self._stand_in(workers))
        allocation, _ = allocate_or_keep(
            problem, self._solver, None, time_limit_s=self._config.control.solver_time_limit_s
        )
        return {r.name: n for r, n in zip(self.static, allocation.instances, strict=True) if n}

    @property
    def longest(self) -> str:
        """The runtime that a worker gets when nothing better is known: it can serve every request."""
        if self.static and self._config.deployment.dynamic == 0:
            return self.static[-1].name
        dynamic = dynamic_runtime(self._manifest)
        assert dynamic is not None, "choose() has seen one"
        return dynamic.name

    # --- the loop ---

    async def run(self) -> None:
        """Watch and plan until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._plan_on_time())

    async def _watch(self) -> None:
        while True:
            try:
                async for stats in self._deployments.admin.watch_stats(interval_ms=STATS_MS):
                    await self.see(stats)
            except GatewayError:
                pass  # it is restarting; whoever restarts it says so
            await asyncio.sleep(LISTEN_S)

    async def see(self, stats: Any) -> None:
        """One arlo.v1.Stats; plans at once when it shows another traffic."""
        self.stats = stats
        stamp = self._stamps.stamp(stats.started_at_ms, stats.uptime_ns, monotonic_s())
        self._stats_s = at_s = stamp.at_s
        self._window.add(at_s, stamp.started_s, stats.arrivals_by_length)
        self._shift.add(at_s, stamp.started_s, stats.arrivals_by_length)
        if at_s - self._listened_s >= LISTEN_S:
            self._listened_s = at_s
            for listener in self.listeners:
                listener(stats)
        if not self._planning.locked():  # else a plan is being made, whatever for
            async with self._planning:
                if await self._shifted():
                    await self._plan("shift")

    async def _plan_on_time(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, max(0.05, self.next_plan_in_s)))
            grace_s = self._config.control.worker_grace_s
            usable = frozenset(view.id for view in self._reconciler.views(grace_s=grace_s) if view.usable)
            if usable and usable != self._workers:
                await self.plan("worker_lost" if self._workers - usable else "worker_back")
            elif self.next_plan_in_s <= 0:
                await self.plan("period")

    async def _shifted(self) -> bool:
        """Whether the last moments are surely other traffic than the last plan was for, and a new plan would pay."""
        control = self._config.control
        if not (control.early and control.reallocate and self.static):
            return False
        candidate = self._shift.candidate(monotonic_s())
        if candidate is None:
            return False
        pays = await self._pays(candidate.demand)
        self._shift.settle(candidate, pays, monotonic_s())
        return pays

    async def _pays(self, demand: Demand) -> bool:
        """Whether a plan for this demand is much better than the deployment that is wanted now."""
        control = self._config.control
        views = self._reconciler.views(grace_s=control.worker_grace_s)
        now = self._counts(self._reconciler.desired)
        workers = self._static_workers([view.id for view in views if view.usable])
        if sum(now) != workers or workers < 1:
            return False
        problem = self.problem(workers, demand.mean, burst=self._burst(demand), variation=self._variation())
        try:
            allocation = await asyncio.to_thread(self._solver.solve, problem, time_limit_s=control.solver_time_limit_s)
        except Exception:
            return False  # the plan at the end of the period says so
        return self._gain(problem, now, allocation.instances) >= least_gain(control.min_gain)

    # --- planning ---

    async def plan(self, reason: Reason) -> None:
        """Make a plan for the workers that there are, and have it carried out if it pays.

        Three tasks ask for plans. They wait for each other: an older plan must not overwrite a newer one's placement.
        """
        async with self._planning:
            await self._plan(reason)

    async def _plan(self, reason: Reason) -> None:
        control = self._config.control
        self._planned_at_s = monotonic_s()
        self._shift.pause(self._planned_at_s)
        views = self._reconciler.views(grace_s=control.worker_grace_s)
        usable = frozenset(view.id for view in views if view.usable)
        forced = usable != self._workers  # then the placement has to change, whatever is gained
        if not usable:
            return
        self._workers = usable
        demand = self.demand()
        now = self._counts(self._reconciler.desired)
        workers = self._static_workers(usable)
        if not control.reallocate or not self.static or workers < 1:
            if forced:
                self._carry_out(reason, dict(Counter(self._reconciler.desired.values())), views=views, demand=demand)
            return
        least = SHIFT_ROWS if reason == "shift" else MIN_ROWS
        if demand.rows < least and not forced:
            return  # too few to plan for
        enough = demand.rows >= least
        quantities = demand.mean if enough else self._stand_in(workers)
        burst, variation = (self._burst(demand), self._variation()) if enough else (1.0, None)
        problem = self.problem(workers, quantities, burst=burst, variation=variation)
        allocation, fell_back = await asyncio.to_thread(
            allocate_or_keep, problem, self._solver, self._last, time_limit_s=control.solver_time_limit_s
        )
        self._counters["plans"] += 1
        if fell_back:
            self._counters["plan_fallbacks"] += 1
            emit(log, "plan_fallback", level=logging.ERROR, solver=control.solver, error=fell_back)
        if allocation.reason:
            self._counters["infeasible_plans"] += 1
            emit(log, "plan_infeasible", level=logging.WARNING, reason=allocation.reason)
        note = "; ".join(text for text in (allocation.reason or "", fell_back) if text)
        if enough:
            self._known = demand
            self._shift.planned(demand)
        self._last = allocation
        gain = None if sum(now) != workers else self._gain(problem, now, allocation.instances)
        best = tuple(allocation.instances)
        if not forced and (best == now or (gain is not None and gain < control.min_gain)):
            if best != now:
                note = "; ".join([*filter(None, [note]), f"gain {gain:.1%} is below min_gain"])
            self._record(reason, now, best, demand, allocation, moved=False, note=note, gain=gain)
            return
        wanted = {r.name: n for r, n in zip(self.static, best, strict=True) if n}
        if self._config.deployment.dynamic:
            wanted[self.longest] = self._config.deployment.dynamic
        self._carry_out(reason, wanted, views=views, demand=demand, allocation=allocation, note=note, gain=gain)

    def _carry_out(
        self,
        reason: Reason,
        wanted: dict[str, int],
        *,
        views: list[WorkerView],
        demand: Demand,
        allocation: Allocation | None = None,
        note: str = "",
        gain: float | None = None,
    ) -> None:
        if sum(wanted.values()) < sum(view.usable for view in views) and allocation is None and wanted:
            wanted[self.longest] += sum(view.usable for view in views) - sum(wanted.values())
        placement = assign(self._ordered(wanted), views)
        before = dict(self._reconciler.desired)
        moved = changed(before, placement)
        now, best = self._counts(before), self._counts(placement)
        self._reconciler.want(placement, self._quantities(demand), urgent=(gain or 0.0) >= URGENT_GAIN)
        self._save(placement, reason)
        self._record(reason, now, best, demand, allocation, moved=bool(moved), note=note, changes=len(moved), gain=gain)

    def _stand_in(self, workers: int) -> list[float]:
        """Demand to plan for when too little is seen now: the last one that was known.

        When none was: every length up to the longest as likely as any other, at half of what the workers carry.
        """
        if self._known is not None:
            return list(self._known.mean)
        scale = 0.5 * workers * self._config.model.slo_ms
        widths = [b - a for a, b in zip((0, *self._lengths), self._lengths, strict=False)]
        work = sum(w * c.batch_ms(1) for w, c in zip(widths, self._curves, strict=True))
        return [w * scale / work for w in widths]

    def _gain(self, problem: AllocationProblem, now: Sequence[int], best: Sequence[int]) -> float:
        """Share of the predicted mean latency that `best` saves over `now`."""
        before, after = self.predicted_mean_ms(problem, now), self.predicted_mean_ms(problem, best)
        if before == float("inf"):
            return 1.0
        return 1 - after / before if before > 0 else 0.0

    # --- notes ---

    def _counts(self, placement: dict[str, str]) -> tuple[int, ...]:
        count = Counter(placement.values())
        return tuple(count[runtime.name] for runtime in self.static)

    def _ordered(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """By ascending max_length, a dynamic runtime after a static one, as assign() takes it."""
        rank = {runtime.name: (runtime.max_length, runtime.dynamic) for runtime in self._manifest.runtimes}
        return {name: wanted[name] for name in sorted(wanted, key=lambda name: rank[name]) if wanted[name]}

    def _static_workers(self, workers: Collection[str]) -> int:
        return len(workers) - self._config.deployment.dynamic

    def _quantities(self, demand: Demand) -> list[float]:
        """Demand by runtime of the whole manifest, ascending max_length, for ordering the steps."""
        by_length = dict(zip(self._lengths, demand.mean, strict=True))
        order = sorted(self._manifest.runtimes, key=lambda r: (r.max_length, r.name))
        return [0.0 if runtime.dynamic else by_length.get(runtime.max_length, 0.0) for runtime in order]

    def _save(self, placement: dict[str, str], reason: str) -> None:
        desired = state.DesiredState(
            placement=placement,
            reason=reason,
            at_ms=round(unix_s() * 1000),
            fingerprint=state.fingerprint(self._config, self._manifest),
        )
        try:
            state.save(self._config.workers.run_dir, desired)
        except OSError as error:
            emit(log, "state_not_saved", level=logging.ERROR, error=str(error))

    def _note(self, reason: Reason, placement: dict[str, str], views: list[WorkerView], *, note: str) -> None:
        counts = self._counts(placement)
        serving = {view.id: view.serving for view in views}
        changes = len(changed(serving, placement))
        self._record(reason, counts, counts, self.demand(), None, moved=bool(changes), note=note, changes=changes)

    def _record(
        self,
        reason: Reason,
        now: Sequence[int],
        best: Sequence[int],
        demand: Demand,
        allocation: Allocation | None,
        *,
        moved: bool,
        note: str,
        changes: int = 0,
        gain: float | None = None,
    ) -> None:
        predicted = 0.0
        if demand.rows and sum(best) and best[-1]:
            predicted = self.predicted_mean_ms(self.problem(sum(best), demand.mean), best)
        record = PlanRecord(
            at_ms=round(unix_s() * 1000),
            reason=reason,
            instances={runtime.name: n for runtime, n in zip(self.static, best, strict=True)},
            changed=changes,
            moved=moved,
            demand=[round(q, 3) for q in demand.mean],
            predicted_mean_ms=round(predicted, 3),
            solver=allocation.solver if allocation else "",
            objective=self._config.control.objective if allocation else "",
            solve_ms=round(allocation.solve_s * 1000, 3) if allocation else 0.0,
            note=note,
            gain=gain if gain is None else round(gain, 4),
        )
        self.plans.append(record)
        emit(
            log,
            "plan",
            reason=reason,
            moved=moved,
            changes=changes,
            before=list(now),
            after=list(best),
            demand=[round(q, 2) for q in demand.mean],
            predicted_mean_ms=record.predicted_mean_ms,
            gain=record.gain,
            solve_ms=record.solve_ms,
            note=note,
        )
