"""Puts decisions into effect and on record: a placement for the reconciler, the saved state, a PlanRecord."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

from arlo.clock import unix_s
from arlo.control.events import emit
from arlo.control.http.status import PlanRecord
from arlo.control.mode import ServingMode
from arlo.control.reconcile import state
from arlo.control.reconcile.reconciler import Reconciler
from arlo.planning.placement.assignment import assign, changed
from arlo.planning.planner import Plan, Planner, Reason
from arlo.planning.traffic.demand import Demand
from arlo.planning.view import WorkerView

log = logging.getLogger("arlo.control")

KEPT_PLANS = 120


class Orders:
    """Used only by the runtime scheduler."""

    def __init__(
        self,
        mode: ServingMode,
        planner: Planner,
        reconciler: Reconciler,
        *,
        longest: str,
    ) -> None:
        """`longest`: the runtime for spare workers and for those outside the plan."""
        self._mode = mode
        self._planner = planner
        self._reconciler = reconciler
        self._longest = longest
        self.plans: deque[PlanRecord] = deque(maxlen=KEPT_PLANS)

    def counts(self, placement: Mapping[str, str]) -> tuple[int, ...]:
        """Instances of each planned runtime, in the planner's order."""
        count = Counter(placement.values())
        return tuple(count[runtime.name] for runtime in self._planner.planned)

    def ordered(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Instances by ascending max_length, a dynamic runtime after a static one, in the order for assign()."""
        rank = {runtime.name: (runtime.max_length, runtime.dynamic) for runtime in self._mode.manifest.runtimes}
        return {name: wanted[name] for name in sorted(wanted, key=lambda name: rank[name]) if wanted[name]}

    def begin(self, reason: Reason, placement: dict[str, str], views: Sequence[WorkerView], *, note: str) -> None:
        """Record the first placement; the caller hands it to the reconciler."""
        changes = len(changed({view.id: view.serving for view in views}, placement))
        counts = self.counts(placement)
        self._save(placement, reason)
        self._record(
            reason, counts, counts, self._planner.demand(), None, moved=bool(changes), note=note, changes=changes
        )

    def keep(self, reason: Reason, views: Sequence[WorkerView], demand: Demand) -> None:
        """Keep the instances; only assign workers that came and replace those that left."""
        wanted = Counter(self._reconciler.desired.values())
        spare = sum(view.usable for view in views) - sum(wanted.values())
        if spare > 0 and wanted:
            wanted[self._longest] += spare
        self._carry_out(reason, wanted, views, demand)

    def follow(self, plan: Plan, views: Sequence[WorkerView], demand: Demand) -> None:
        """Carry out a plan's decision."""
        if not plan.moves:
            self._record(plan.reason, plan.wanted, plan.best, demand, plan, moved=False, note=plan.note)
            return
        wanted = {r.name: n for r, n in zip(self._planner.planned, plan.best, strict=True) if n}
        if self._mode.config.deployment.dynamic:
            wanted[self._longest] = self._mode.config.deployment.dynamic
        self._carry_out(plan.reason, wanted, views, demand, plan)

    def _carry_out(
        self,
        reason: Reason,
        wanted: Mapping[str, int],
        views: Sequence[WorkerView],
        demand: Demand,
        plan: Plan | None = None,
    ) -> None:
        placement = assign(self.ordered(wanted), views)
        before = dict(self._reconciler.desired)
        moved = changed(before, placement)
        self._reconciler.want(placement, self._quantities(demand), urgent=plan is not None and plan.urgent)
        self._save(placement, reason)
        now, best = self.counts(before), self.counts(placement)
        note = plan.note if plan is not None else ""
        self._record(reason, now, best, demand, plan, moved=bool(moved), note=note, changes=len(moved))

    def _quantities(self, demand: Demand) -> list[float]:
        """Demand by runtime of the whole manifest, ascending max_length, for ordering the steps."""
        mean = self._planner.subject.by_runtime(demand.mean)
        order = sorted(self._mode.manifest.runtimes, key=lambda r: (r.max_length, r.name))
        return [mean.get(runtime.name, 0.0) for runtime in order]

    def _save(self, placement: dict[str, str], reason: str) -> None:
        try:
            state.save(self._mode, placement, reason=reason, at_ms=round(unix_s() * 1000))
        except OSError as error:
            emit(log, "state_not_saved", level=logging.ERROR, error=str(error))

    def _record(
        self,
        reason: Reason,
        now: Sequence[int],
        best: Sequence[int],
        demand: Demand,
        plan: Plan | None,
        *,
        moved: bool,
        note: str,
        changes: int = 0,
    ) -> None:
        predicted = 0.0
        if demand.rows and sum(best) and best[-1]:
            predicted = self._planner.predicted_mean_ms(demand, best)
        gain = plan.gain if plan is not None else None
        by_model = self._by_model(demand)
        more: dict[str, Any] = {"demand_by_model": by_model} if by_model else {}
        record = PlanRecord(
            at_ms=round(unix_s() * 1000),
            reason=reason,
            instances={runtime.name: n for runtime, n in zip(self._planner.planned, best, strict=True)},
            changed=changes,
            moved=moved,
            demand=[round(q, 3) for q in demand.mean],
            predicted_mean_ms=round(predicted, 3),
            solver=plan.allocation.solver if plan is not None else "",
            objective=self._mode.config.control.objective if plan is not None else "",
            solve_ms=round(plan.allocation.solve_s * 1000, 3) if plan is not None else 0.0,
            note=note,
            gain=gain if gain is None else round(gain, 4),
            demand_by_model=by_model,
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
            **more,
        )

    def _by_model(self, demand: Demand) -> dict[str, float]:
        """Requests per SLO period of each of several models; empty for one model."""
        each = self._planner.subject.by_model(demand)
        return {name: round(own.total, 2) for name, own in zip(self._mode.models, each, strict=False)}
