"""Automatic scaling in a simulation: the policies of arlo.planning.scaling, asked once a second.

They see the same signals as in the control plane: the p98 latency, the answered and unanswered requests of the last
`window_s`, the work that arrived in it by the planner's statistics, and the busy share of each worker. An added worker
serves after `start_s`; a removed one drains first. The allocation is solved for the new number of workers when the
period is over, as in the paper, or with `replan` at once, as in the control plane.

The arrived work counts each request at the latency of its ideal runtime (a dynamic one's own at that length). That is
right for schemes that send requests there. INFaaS also packs them onto longer variants, and by that measure would seem
idle while its queues grow. So with `new_runtime` "least_headroom" the work is the number of arrived requests times the
actual time of a request on the variants it ran on, as INFaaS monitors it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.planning.planner import Reason
from arlo.planning.scaling.policies import Signals, make_policy
from arlo.simulator.foresight import SECOND_NS
from arlo.simulator.ladder import Ladder
from arlo.simulator.report.timeline import Recent
from arlo.simulator.scenario.scenario import Scenario
from arlo.simulator.world import World, in_ns, number_of

TICK_NS = SECOND_NS


class Scaler:
    """Life: tick() at each moment `next_ns`."""

    def __init__(
        self, scenario: Scenario, ladder: Ladder, world: World, engine: _core.Simulation, recent: Recent
    ) -> None:
        scale = scenario.scale
        self._scenario = scenario
        self._ladder = ladder
        self._world = world
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
        # Moments in the window, the latest last: busy ns of each worker, requests served by all.
        self._samples: deque[tuple[int, NDArray[np.int64], int]] = deque([(0, np.zeros(0, np.int64), 0)])
        self.next_ns = TICK_NS

    def tick(self, now_ns: int) -> None:
        """Look, decide and act."""
        self.next_ns = now_ns + TICK_NS
        self._recent.take(now_ns)
        came, loads = self._ladder.planner.recent().rows, self._ladder.planner.loads()
        busy, taken_ns = self._look(now_ns)
        load = sum(loads)
        if self._scenario.scale.new_runtime == "least_headroom" and taken_ns:
            load = came / self._window_ns * taken_ns
        decision = self._policy.decide(self._signals(now_ns, busy, load, came))
        if decision.action == "add":
            runtime = self._for_new(loads, decision.runtime)
            self._world.add(runtime, now_ns + in_ns(self._scenario.scale.start_s))
            self._replan(now_ns, "scale_out")
        elif decision.action == "remove" and decision.worker is not None:
            self._world.remove(number_of(decision.worker))
            self._replan(now_ns, "scale_in")

    def _replan(self, now_ns: int, reason: Reason) -> None:
        if self._scenario.scale.replan:
            self._world.replan(now_ns, reason)

    def _look(self, now_ns: int) -> tuple[NDArray[np.float64], float]:
        """Over the window: the busy share of each worker, and the mean time of a request in ns (0 without any)."""
        workers = self._engine.workers()
        busy_ns, served = workers["busy_ns"], int(workers["served"].sum())
        self._samples.append((now_ns, busy_ns, served))
        while self._samples[1][0] <= now_ns - self._window_ns:
            self._samples.popleft()
        since_ns, busy_before, served_before = self._samples[0]
        worked = busy_ns.astype(np.float64)
        worked[: len(busy_before)] -= busy_before
        answered = served - served_before
        return np.clip(worked / (now_ns - since_ns), 0.0, 1.0), float(worked.sum()) / answered if answered else 0.0

    def _signals(self, now_ns: int, busy: NDArray[np.float64], load: float, came: int) -> Signals:
        window = self._recent.window
        p98_ms = window.quantile_ms(0.98)
        return Signals(
            now_s=now_ns / SECOND_NS,
            slo_ms=self._scenario.slo_ms,
            p98_ms=p98_ms if window.sums["answered"] else 0.0,
            rows=int(window.sums["answered"]),
            # Requests that no runtime takes are also refused, but show no lack of capacity.
            unanswered=int(max(0, min(window.sums["unanswered"], came - window.sums["answered"]))),
            arrived=came,
            load=load,
            workers=self._world.views(busy),
            longest=self._ladder.names[self._ladder.longest],
            planned=self._ladder.planner.subject.size,
            kept=frozenset(view.name for view in self._ladder.views if self._scenario.served is not None),
        )

    def _for_new(self, loads: Sequence[float], asked: str | None) -> int:
        """The runtime of a new worker: the policy's choice (the longest), or the one with the least spare capacity."""
        ladder = self._ladder
        if self._scenario.scale.new_runtime == "longest" or not ladder.static:
            return ladder.index[asked] if asked is not None else ladder.longest
        counts = self._world.counts()
        lacking = [
            load * (1 + self._scenario.scale.headroom) - counts[i] for i, load in zip(ladder.static, loads, strict=True)
        ]
        best = max(range(len(lacking)), key=lambda i: (lacking[i], i))  # of equal ones the longest
        return ladder.static[best]
