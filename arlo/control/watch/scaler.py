"""Auto-scaling (paper, section 4): a policy of arlo.planning.scaling decides, the pool adds, the reconciler lets go.

A new worker gets the longest runtime; the next plan, made at once for the new number of workers, gives it its proper
one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from arlo.clock import monotonic_s, unix_s
from arlo.control.events import emit
from arlo.control.http.status import ScalingStatus
from arlo.control.mode import ServingMode
from arlo.control.reconcile.reconciler import Reconciler
from arlo.control.watch.feed import Snapshot
from arlo.control.watch.scheduler import RuntimeScheduler
from arlo.control.watch.usage import UsageWindow
from arlo.errors import ArloError
from arlo.planning.scaling.policies import Decision, Signals, make_policy
from arlo.workers.pool import WorkerPool

log = logging.getLogger("arlo.control")

WINDOW_S = 10.0


class Scaler:
    """Carries out scaling decisions, one step at a time."""

    def __init__(
        self,
        mode: ServingMode,
        pool: WorkerPool,
        reconciler: Reconciler,
        scheduler: RuntimeScheduler,
        *,
        counters: Counter[str],
    ) -> None:
        self._mode, config = mode, mode.config
        self._pool = pool
        self._reconciler = reconciler
        self._scheduler = scheduler
        self._counters = counters
        self._usage = UsageWindow(window_s=WINDOW_S)
        self._by_model = [UsageWindow(window_s=WINDOW_S) for _ in mode.slos_ms]
        self._minimum, self._maximum = config.worker_limits
        scaling = config.scaling
        self.policy = scaling.policy
        if self.policy != "none" and not pool.resizable:
            emit(log, "scaling_off", level=logging.WARNING, reason="the number of workers of this pool is fixed")
            self.policy = "none"
        self._decider = make_policy(
            self.policy,
            min_workers=self._minimum,
            max_workers=config.worker_count if self.policy == "none" else self._maximum,
            scale_out_share=scaling.scale_out_share,
            scale_in_share=scaling.scale_in_share,
            scale_in_period_s=scaling.scale_in_period_s,
            headroom=scaling.headroom,
            cooldown_s=scaling.cooldown_s,
        )
        self._last = ("", "", 0)

    async def on_stats(self, seen: Snapshot) -> None:
        """Make a decision and carry it out."""
        self._usage.add(seen.models[0])
        clients = self._mode.of_clients(seen)
        for window, each in zip(self._by_model, clients, strict=False):
            window.add(each)
        if not clients or not self._pool.resizable or self._reconciler.leaving:
            return
        if self.policy == "none" and len(self._reconciler.views()) <= self._mode.config.worker_count:
            return  # otherwise an earlier control plane, configured for more, left some
        decision = self._decider.decide(self._signals(clients))
        if decision.action != "none":
            try:
                await self._act(decision)
            except ArloError as error:
                self._counters["scaling_failures"] += 1
                emit(log, "scaling_failed", level=logging.ERROR, action=decision.action, error=str(error))

    def busy(self) -> dict[str, float]:
        """Worker -> share of the last seconds with work."""
        return {worker: usage.busy for worker, usage in self._usage.by_worker().items()}

    def status(self) -> ScalingStatus:
        """The scaling part of `/status`."""
        action, reason, at_ms = self._last
        return ScalingStatus(
            policy=self.policy,
            workers=len(self._reconciler.views()),
            minimum=self._minimum,
            maximum=self._maximum,
            last_action=action,
            last_reason=reason,
            last_at_ms=at_ms,
        )

    async def _act(self, decision: Decision) -> None:
        emit(log, "scaling", action=decision.action, worker=decision.worker, reason=decision.reason)
        if decision.action == "add":
            added = await self._pool.add()
            self._counters["workers_added"] += 1
            self._last = (f"add {added.id}", decision.reason, round(unix_s() * 1000))
            await self._reconciler.observe()
            await self._scheduler.plan("scale_out")
        elif decision.worker is not None:
            self._last = (f"remove {decision.worker}", decision.reason, round(unix_s() * 1000))
            self._reconciler.let_go(decision.worker)
            await self._scheduler.plan("scale_in")

    def _signals(self, clients: Sequence[Any]) -> Signals:
        """The policy's input. Several models: the latency of the one that is slowest relative to its SLO, and the load
        of all. A cascade: the latency of the whole path, and the load of all stages."""
        planner = self._scheduler.planner
        signals = [
            Signals(
                now_s=monotonic_s(),
                slo_ms=slo_ms,
                p98_ms=each.total.p98_us / 1000,
                rows=each.total.count,
                unanswered=window.unanswered,
                arrived=planner.recent().rows,
                load=sum(planner.loads()),
                workers=self._reconciler.views(busy=self.busy()),
                longest=self._scheduler.longest,
                planned=planner.subject.size,
                kept=self._reconciler.kept,
            )
            for slo_ms, each, window in zip(self._mode.slos_ms, clients, self._by_model, strict=False)
        ]
        return max(signals, key=lambda one: (one.slowest_ms / one.slo_ms, one.rows))
