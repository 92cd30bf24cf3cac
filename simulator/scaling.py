"""Automatic scaling in a simulation: the policies of arlo.planning.scaling.policies, asked once a second.

What they see is what the control plane shows them: the p98 latency and the answers of the last `window_s`, the work
that arrived in it, and how busy each worker was. A worker that is added serves after `start_s`; one that is removed
drains first. The allocation is solved for the new number of workers when the period is over, as in the paper, or with
`replan` at once, as the control plane does it.

The work that arrived is each request at the latency of its ideal runtime (a dynamic one's own at that length). That is
right for schemes that send requests there; INFaaS packs them onto longer variants as well, and by that measure would
believe itself idle while its queues grow. So with `new_runtime` "least_headroom" the work is the requests that arrived
times what a request took in fact on the variants it ran on, as INFaaS monitors it.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.planning.scaling.policies import Signals, make_policy
from arlo.planning.traffic.demand import bins
from arlo.simulator.allocation import SECOND_NS, Planner
from arlo.simulator.control import Controller, in_ns, number_of
from arlo.simulator.report.timeline import Recent
from arlo.simulator.scenario.scenario import Scenario

TICK_NS = SECOND_NS


class Scaler:
    """Life: tick() at each moment `next_ns`."""

    def __init__(
        self, scenario: Scenario, planner: Planner, controller: Controller, engine: _core.Simulation, recent: Recent
    ) -> None:
        scale = scenario.scale
        self._scenario = scenario
        self._planner = planner
        self._controller = controller
        self._engine = engine
        self._recent = recent
        self._window_ns = in_ns(scale.window_s)
        self._policy = make_policy(
            scale.kind,
            min_workers=scale.min_workers,
            max_workers=scale.max_workers,
            scale_out_share=scale.scale_out_share,
            scale_in_share=scale.scale_in_share,
            scale_in_period_s=scale.scale_in_period_s,
            headroom=scale.headroom,
            cooldown_s=scale.cooldown_s,
            window_s=scale.window_s,
        )
        # Moments in the window, the latest last: busy ns of each worker, requests served by all, arrivals by length.
        nothing = np.zeros(0, np.int64)
        self._samples: deque[tuple[int, NDArray[np.int64], int, NDArray[np.int64]]] = deque([(0, nothing, 0, nothing)])
        self.next_ns = TICK_NS

    def tick(self, now_ns: int) -> None:
        """Look, decide and act."""
        self.next_ns = now_ns + TICK_NS
        self._recent.take(now_ns)
        busy, loads, load, came = self._look(now_ns)
        decision = self._policy.decide(self._signals(now_ns, busy, load, came))
        if decision.action == "add":
            runtime = self._for_new(loads, decision.runtime)
            self._controller.add(runtime, now_ns + in_ns(self._scenario.scale.start_s))
            self._replan(now_ns)
        elif decision.action == "remove" and decision.worker is not None:
            self._controller.remove(number_of(decision.worker))
            self._replan(now_ns)

    def _replan(self, now_ns: int) -> None:
        if self._scenario.scale.replan:
            self._controller.replan(now_ns)

    def _look(self, now_ns: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float, int]:
        """Of the window: the busy share of each worker, instances of work that arrived, by bin and in all, and the
        requests that arrived and that a runtime takes."""
        workers = self._engine.workers()
        busy_ns, served = workers["busy_ns"], int(workers["served"].sum())
        arrivals = self._planner.clip(self._engine.arrivals_by_length())
        self._samples.append((now_ns, busy_ns, served, arrivals))
        while self._samples[1][0] <= now_ns - self._window_ns:
            self._samples.popleft()
        since_ns, busy_before, served_before, arrivals_before = self._samples[0]
        span_ns = now_ns - since_ns
        worked = busy_ns.astype(np.float64)
        worked[: len(busy_before)] -= busy_before
        came = arrivals.astype(np.int64)
        came[: len(arrivals_before)] -= arrivals_before
        loads = bins(came, self._planner.load_lengths) * self._planner.load_s / (span_ns / SECOND_NS)
        load = float(loads.sum())
        if self._scenario.scale.new_runtime == "least_headroom" and served > served_before:
            load = float(came.sum()) / span_ns * float(worked.sum()) / (served - served_before)
        return np.clip(worked / span_ns, 0.0, 1.0), loads, load, int(came.sum())

    def _signals(self, now_ns: int, busy: NDArray[np.float64], load: float, came: int) -> Signals:
        window = self._recent.window
        p98_ms = window.quantile_ms(0.98)
        return Signals(
            now_s=now_ns / SECOND_NS,
            slo_ms=self._scenario.slo_ms,
            p98_ms=p98_ms if window.sums["answered"] else 0.0,
            rows=int(window.sums["answered"]),
            # What no runtime takes is refused too, and is no want of capacity.
            unanswered=int(max(0, min(window.sums["unanswered"], came - window.sums["answered"]))),
            arrived=int(window.sums["arrived"]),
            load=load,
            workers=self._controller.views(busy),
            longest=self._planner.names[self._planner.longest],
        )

    def _for_new(self, loads: NDArray[np.float64], asked: str | None) -> int:
        """The runtime of a new worker: what the policy asks for (the longest), or where the spare capacity is least."""
        planner = self._planner
        if self._scenario.scale.new_runtime == "longest" or not planner.static:
            return planner.index[asked] if asked is not None else planner.longest
        counts = self._controller.counts()
        lacking = [
            load * (1 + self._scenario.scale.headroom) - counts[i]
            for i, load in zip(planner.static, loads, strict=True)
        ]
        best = max(range(len(lacking)), key=lambda i: (lacking[i], i))  # of equal ones the longest
        return planner.static[best]
