"""The runtime scheduler (paper, section 3.3): watches the lengths, plans every period, tells the reconciler.

One task reads the gateway's statistics, ten a second. A plan is made when the period is over, when workers came or
went, or, with control.early, when the traffic has clearly shifted. What to decide is the planner's
(arlo.planning.planner); here are the clock, the thread that it solves in, and the order: plans are made one at a time.
One event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from arlo.cascade.manifest import Point
from arlo.catalog.bundle import shared_bundle
from arlo.catalog.manifest import Manifest, Runtime
from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.config.flow_variants import pipeline_name, served_flow
from arlo.config.stages import cascade_manifest, cascade_name
from arlo.control.events import emit
from arlo.control.reconcile import state
from arlo.control.reconcile.choice import Choice, choose
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.pipeline import records_of, traffic_counts
from arlo.control.reconcile.placement import Plan, place, plan_from_config
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch.orders import Orders
from arlo.errors import GatewayError
from arlo.planning.cascade import CascadePlanner
from arlo.planning.flows.serving import FlowPlanner
from arlo.planning.lengths.advice import dynamic_runtime
from arlo.planning.models import ModelPlanner, Served
from arlo.planning.placement.assignment import assign
from arlo.planning.planner import Planner, PlannerSettings, Reason
from arlo.planning.serving import planner_for
from arlo.planning.traffic.demand import Demand
from arlo.planning.traffic.shift import SAMPLE_S
from arlo.planning.traffic.stamp import StampClock
from arlo.planning.view import WorkerView

log = logging.getLogger("arlo.control")

STATS_MS = round(SAMPLE_S * 1000)
LISTEN_S = 1.0  # between two statistics that others are told of


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
        told = config.deployment.instances or config.dedicated
        self._configured = plan_from_config(config, manifest) if told else None
        self.choice = choose(config, manifest)
        self.planner = _planner(config, manifest, self.choice)
        self._others: dict[str, Any] = {}  # the last arlo.v1.Stats of models beside the first
        self.whole: Any = None  # the last one of a cascade, whose rows end there, whatever stages they ran on
        self._orders = Orders(config, manifest, self.planner, reconciler, deployments, longest=self.longest)
        self.plans = self._orders.plans
        self._stamps, self._flow_stamps = StampClock(), StampClock()
        self._listened_s = float("-inf")
        self._planning = asyncio.Lock()  # plans are made one after the other, each from what is known when it begins
        self._planned_at_s = monotonic_s()
        self.stats: Any = None  # the last arlo.v1.Stats
        self.listeners: list[Callable[[Any], None]] = []  # called with each arlo.v1.Stats

    # --- what others ask ---

    @property
    def next_plan_in_s(self) -> float:
        """Until the period is over."""
        return max(0.0, self._planned_at_s + period_s(self._config) - monotonic_s())

    @property
    def by_model(self) -> list[Any]:
        """The last arlo.v1.Stats of each model, in the order of the configuration; empty before all have told."""
        others = [self._others.get(model.name or "") for model in self._config.more_models]
        return [] if self.stats is None or None in others else [self.stats, *others]

    def demand(self) -> Demand:
        """Of the window until now."""
        return self.planner.demand()

    @property
    def longest(self) -> str:
        """The runtime that a worker gets when nothing better is known: it can serve every request."""
        if self.choice.serve == "models":
            return max(self.planner.planned, key=lambda runtime: runtime.max_length).name
        if self.planner.planned and self._config.deployment.dynamic == 0:
            return self.planner.planned[-1].name
        dynamic = dynamic_runtime(self._manifest)
        assert dynamic is not None, "choose() has seen one"
        return dynamic.name

    # --- the first placement ---

    def first_placement(self) -> dict[str, str]:
        """The saved one where it fits, else that of the configuration, else one for lengths not known yet."""
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
            placement = assign(self._orders.ordered(wanted), views)
        else:
            plan = Plan(tuple(self._orders.ordered(wanted).items()))
            placement = place(plan, [view.id for view in usable])
        self.planner.count_on(placement)
        note = "" if saved else "as configured" if self._configured else self._first_note()
        self._orders.begin(reason, placement, views, note=note)
        return placement

    def _first_note(self) -> str:
        return (
            "for lengths that are not known yet" if self.planner.planned else "the dynamic runtime takes every length"
        )

    def _from_config(self) -> dict[str, int]:
        if self._configured is not None:
            return dict(self._configured.instances)
        workers = self._config.worker_count
        if not self.planner.planned:
            return {self.longest: workers}
        return {r.name: n for r, n in zip(self.planner.planned, self.planner.first(workers), strict=True) if n}

    # --- the loop ---

    async def run(self) -> None:
        """Watch and plan until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            for model in self._config.more_models:
                group.create_task(self._watch(model.name))
            if self._config.pipeline is not None:
                group.create_task(self._watch(pipeline_name(self._config.pipeline)))
            if self._config.cascade is not None:
                group.create_task(self._watch(cascade_name(self._config.cascade)))
            group.create_task(self._plan_on_time())

    async def _watch(self, model: str | None = None) -> None:
        while True:
            try:
                async for stats in self._deployments.admin.watch_stats(interval_ms=STATS_MS, model=model):
                    if model is None:
                        await self.see(stats)
                    elif stats.pipeline and isinstance(self.planner, FlowPlanner):
                        stamp = self._flow_stamps.stamp(stats.started_at_ms, stats.uptime_ns, monotonic_s())
                        self.planner.traffic.add(stamp.at_s, stamp.started_s, traffic_counts(stats))
                    elif stats.stages:
                        self.whole = stats
                    else:
                        self._others[model] = stats
            except GatewayError:
                pass  # it is restarting; whoever restarts it says so
            await asyncio.sleep(LISTEN_S)

    async def see(self, stats: Any) -> None:
        """One arlo.v1.Stats, of several models that of the first; plans at once when it shows another traffic."""
        self.stats = stats
        stamp = self._stamps.stamp(stats.started_at_ms, stats.uptime_ns, monotonic_s())
        arrivals = stats.arrivals_by_length
        if isinstance(self.planner, ModelPlanner):
            if len(self._others) < len(self._config.more_models):
                return
            arrivals = self.planner.joined([each.arrivals_by_length for each in self.by_model])
        self.planner.add(stamp.at_s, stamp.started_s, arrivals)
        if stamp.at_s - self._listened_s >= LISTEN_S:
            self._listened_s = stamp.at_s
            for listener in self.listeners:
                listener(stats)
        if not self._planning.locked():  # else a plan is being made, whatever for
            async with self._planning:
                if await self._shifted():
                    await self._plan("shift")

    async def _plan_on_time(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, max(0.05, self.next_plan_in_s)))
            if self._turned():
                await self.plan("point")
            reason = self.planner.changed(self._usable(self._views()))
            if reason is not None:
                await self.plan(reason)
            elif self.next_plan_in_s <= 0:
                await self.plan("period")

    def _turned(self) -> bool:
        """Whether another operating point is in force than the last plan was for, and the planner has been told."""
        planner = self.planner
        if not isinstance(planner, CascadePlanner):
            return False
        point = point_in_force(self._config, self._deployments)
        if point.reach == planner.reach:
            return False
        planner.turn(point.reach)
        return planner.plans

    def _views(self) -> list[WorkerView]:
        return self._reconciler.views(grace_s=self._config.control.worker_grace_s)

    @staticmethod
    def _usable(views: list[WorkerView]) -> list[str]:
        return [view.id for view in views if view.usable]

    async def _shifted(self) -> bool:
        """Whether the last moments are surely other traffic than the last plan was for, and a new plan would pay."""
        candidate = self.planner.candidate(monotonic_s())
        if candidate is None:
            return False
        wanted = self._orders.counts(self._reconciler.desired)
        question = self.planner.weigh(candidate, len(self._usable(self._views())), wanted)
        answer = await asyncio.to_thread(question.solve) if question is not None else None
        return self.planner.settle(candidate, question, answer, monotonic_s())

    # --- planning ---

    async def plan(self, reason: Reason) -> None:
        """Make a plan for the workers that there are, and have it carried out if it pays.

        Three tasks ask for plans. They wait for each other: an older plan must not overwrite a newer one's placement.
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
            if isinstance(self.planner, FlowPlanner) and not self._config.dedicated:
                self.planner.adopt(await asyncio.to_thread(self.planner.by_flow(len(usable), ()).plan, len(usable)))
                await self._orders.tell(self.planner)
            return
        if reason == "point" and begun.question.seen is not None:
            demand = begun.question.seen.demand  # as it will be
        plan = self.planner.conclude(begun.question, await asyncio.to_thread(begun.question.solve))
        self._counters["plans"] += 1
        if plan.fell_back:
            self._counters["plan_fallbacks"] += 1
            emit(log, "plan_fallback", level=logging.ERROR, solver=self._config.control.solver, error=plan.fell_back)
        if plan.allocation.reason:
            self._counters["infeasible_plans"] += 1
            emit(log, "plan_infeasible", level=logging.WARNING, reason=plan.allocation.reason)
        self._orders.follow(plan, views, demand)
        if isinstance(self.planner, FlowPlanner):
            await self._orders.tell(self.planner)


def _planner(config: Config, manifest: Manifest, choice: Choice) -> Planner:
    if not config.more_models:
        runtimes = [runtime for runtime in manifest.runtimes if runtime.dynamic or choice.serve != "dynamic"]
        return planner_for(planner_settings(config), runtimes=runtimes)
    bundles: Sequence[Runtime] = manifest.runtimes
    if not config.dedicated:
        held = [[part for part in bundles[0].parts if manifest.of(part) is one] for one in manifest.models]
        bundles = [shared_bundle(one.model, [parts]) for one, parts in zip(manifest.models, held, strict=True)]
    served = [
        Served(
            bundle=bundle,
            slo_ms=float(model.slo_ms),
            share=model.share,
            workers=model.workers if model.workers is not None else 1,
        )
        for bundle, model in zip(bundles, config.models, strict=True)
    ]
    if config.pipeline is not None:
        flow = served_flow(config.pipeline)
        outcomes = records_of(flow)
        most = config.worker_limits[1] if config.scaling.policy == "plan" else 0
        return planner_for(
            planner_settings(config), models=served, divides=config.dedicated, flow=flow, outcomes=outcomes, most=most
        )
    if config.cascade is not None:
        known = cascade_manifest(config.cascade.manifest)
        lengths = known.data.lengths if known.data is not None else ()
        reach = known.point(config.cascade.point).reach
        return planner_for(
            planner_settings(config), models=served, divides=config.dedicated, reach=reach, lengths=lengths
        )
    return planner_for(planner_settings(config), models=served, divides=config.dedicated)


def point_in_force(config: Config, deployments: Deployments) -> Point:
    """Of a cascade: that of the configuration, or the one that was chosen, or raised, since."""
    assert config.cascade is not None
    return cascade_manifest(config.cascade.manifest).point(deployments.point or config.cascade.point)


def period_s(config: Config) -> float:
    """Between two plans."""
    return config.control.period_s if config.pipeline is None else served_flow(config.pipeline).plan_period_s


def planner_settings(config: Config) -> PlannerSettings:
    """What the configuration says to the planner."""
    control = config.control
    return PlannerSettings(
        slo_ms=float(config.model.slo_ms),
        policy=config.dispatch.policy,
        objective=control.objective,
        solver=control.solver,
        solver_time_limit_s=control.solver_time_limit_s,
        window_s=control.demand_window_s,
        min_gain=control.min_gain,
        early=control.early,
        reallocate=control.reallocate,
        dynamic=config.deployment.dynamic,
        period_s=period_s(config),
    )
