"""Scaling against a cluster that answers: workers take time to start, some never do, some die, the load varies."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from arlo.planning.scaling.policies import Decision, ScalingPolicy, Signals, make_policy
from arlo.planning.view import WorkerView

SLO_MS = 100.0


@dataclass
class Cluster:
    """Workers, and the latency of a queue in front of them: it grows without bound as the load reaches the capacity."""

    start_s: int  # from being asked for to serving
    list_s: int  # from being asked for to being listed
    workers: dict[str, WorkerView]
    asked: list[tuple[int, bool]] = field(default_factory=list)  # when, and whether it ever starts
    base_ms: float = 20.0
    count: int = 0

    def tick(self, now: int, load: float) -> Signals:
        for at, works in list(self.asked):
            if now - at == self.list_s:
                self.add(usable=False)
            if now - at >= self.start_s:
                self.asked.remove((at, works))
                new = next((w for w in self.workers.values() if not w.usable and w.serving is None), None)
                if new is not None and works:
                    self.workers[new.id] = WorkerView(id=new.id, serving="long")
        serving = sum(worker.serving is not None for worker in self.workers.values())
        p98_ms = self.base_ms / (1 - load / serving) if load < serving else 1000.0
        return Signals(
            now_s=float(now),
            slo_ms=SLO_MS,
            p98_ms=p98_ms,
            rows=round(1000 * load),
            arrived=round(1000 * load),
            load=load,
            workers=list(self.workers.values()),
            longest="long",
        )

    def add(self, usable: bool, serving: str | None = None) -> None:
        name = f"w{self.count}"
        self.count += 1
        self.workers[name] = WorkerView(id=name, usable=usable, serving=serving)

    @property
    def size(self) -> int:
        """Workers that there are or will be."""
        listed = sum(not worker.usable for worker in self.workers.values())
        return len(self.workers) + max(0, len(self.asked) - listed)


@dataclass(frozen=True)
class Run:
    """Who decides, over what."""

    policy: ScalingPolicy
    cluster: Cluster
    min_workers: int
    max_workers: int
    period_s: int


@st.composite
def runs(draw: st.DrawFn) -> Run:
    least = draw(st.integers(1, 3))
    most = draw(st.integers(least, 8))
    period_s = draw(st.sampled_from([5, 60]))
    settings_ = {
        "min_workers": least,
        "max_workers": most,
        "scale_out_share": 0.95,
        "scale_in_share": 0.5,
        "scale_in_period_s": period_s,
        "headroom": draw(st.sampled_from([0.05, 0.5])),
        "cooldown_s": draw(st.sampled_from([0, 10])),
    }
    policy = make_policy(draw(st.sampled_from(["target", "headroom"])), **settings_)
    start_s = draw(st.integers(2, 40))
    cluster = Cluster(start_s, draw(st.integers(1, start_s - 1)), {})
    for index in range(draw(st.integers(least, most))):
        cluster.add(usable=True, serving="long" if index == 0 else draw(st.sampled_from(["long", "short"])))
    return Run(policy, cluster, least, most, period_s)


def obey(run: Run, decision: Decision, now: int, works: bool = True) -> None:
    workers = run.cluster.workers
    if decision.action == "add":
        assert decision.runtime == "long"
        assert run.cluster.size < run.max_workers
        run.cluster.asked.append((now, works))
    elif decision.action == "remove":
        assert decision.worker is not None
        gone = workers.pop(decision.worker)
        assert gone.usable
        left = [worker for worker in workers.values() if worker.usable]
        assert len(left) >= run.min_workers
        assert gone.serving != "long" or any(worker.serving == "long" for worker in left)
    assert decision.reason or decision.action == "none"


@settings(max_examples=150, deadline=None)
@given(
    run=runs(),
    loads=st.lists(st.floats(0, 9), min_size=1, max_size=8),
    accidents=st.dictionaries(st.integers(0, 400), st.sampled_from(["die", "return", "never starts"]), max_size=6),
)
def test_limits_hold_whatever_happens(run: Run, loads: list[float], accidents: dict[int, str]) -> None:
    works = True
    for now in range(400):
        accident = accidents.get(now)
        works = works and accident != "never starts"
        for worker in list(run.cluster.workers.values())[:1]:
            if accident == "die":
                run.cluster.workers[worker.id] = WorkerView(id=worker.id, usable=False, serving="short")
            elif accident == "return":
                run.cluster.workers[worker.id] = WorkerView(id=worker.id, serving="long")
        obey(run, run.policy.decide(run.cluster.tick(now, loads[now * len(loads) // 400])), now, works)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(run=runs(), load=st.integers(0, 90) | st.integers(7, 18), base_ms=st.sampled_from([5.0, 10.0, 20.0]))
def test_a_constant_load_is_not_followed_up_and_down(run: Run, load: int, base_ms: float) -> None:
    """A release that has to be taken back is tried once in ten periods by the latency policy, never by the other."""
    run.cluster.base_ms = base_ms
    kinds, seconds = [], 1500
    for now in range(seconds):
        decision = run.policy.decide(run.cluster.tick(now, load / 10))
        obey(run, decision, now)
        if decision.action != "none":
            kinds.append(decision.action)
    turns = sum(one != two for one, two in pairwise(kinds))
    event(f"{run.policy.name}: turns" if turns > 1 else f"{run.policy.name}: at most one turn")
    tries = 1 + seconds // (10 * run.period_s)
    assert turns <= (1 if run.policy.name == "headroom" else 1 + 2 * tries)
