"""The creep detector: who is suspect, when, and why not."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arlo.planning.health.creep import CreepDetector, Sample

EXPECTED_MS = {"s64": 1.0, "s512": 5.0}


def sample(row_ms: float, runtime: str = "s64", rows: int = 100) -> Sample:
    return Sample(runtime=runtime, rows=rows, busy_s=row_ms * rows / 1000, expected_ms=EXPECTED_MS[runtime])


class Watch:
    """A detector that is asked every 10 s."""

    def __init__(self, factor: float = 3.0, **settings: float) -> None:
        self.detector = CreepDetector(factor, **settings)  # type: ignore[arg-type]
        self.now_s = 0.0

    def see(self, *, times: int = 1, **workers: Sample) -> list[str]:
        """Suspects of the next `times` observations, each of which sees the same."""
        found = []
        for _ in range(times):
            found += [f"{self.now_s:g} {s.worker}" for s in self.detector.observe(self.now_s, workers)]
            self.now_s += 10
        return found


HEALTHY: Mapping[str, Sample] = {"w1": sample(1.2), "w2": sample(1.0)}


def test_slow_by_both_measures_three_times_in_a_row() -> None:
    assert Watch().see(times=3, w0=sample(4.0), **HEALTHY) == ["20 w0"]


def test_the_reason_has_the_numbers() -> None:
    detector = CreepDetector(3.0, intervals=1)
    (suspect,) = detector.observe(0, {"w0": sample(4.4), **HEALTHY})
    assert suspect.ratio == pytest.approx(4.0)
    assert suspect.reason == (
        "a row takes 4.40 ms on w0, 4.4 times the 1.00 ms of the latency profile of s64 and 4.0 times the median of 2 "
        "other worker(s), in 1 observations in a row"
    )


def test_few_rows_make_one_observation_over_several_intervals() -> None:
    """The gateway sends little to a worker that it has found slow; it is found here all the same."""
    watch = Watch()
    assert watch.see(times=5, w0=sample(4.0, rows=10), **HEALTHY) == []
    assert watch.see(w0=sample(4.0, rows=10), **HEALTHY) == ["50 w0"]
    watch = Watch()
    assert watch.see(times=2, w0=sample(4.0), **HEALTHY) == []
    assert watch.see(w0=sample(4.0, rows=19), **HEALTHY) == []
    assert watch.see(w0=sample(4.0, rows=1), **HEALTHY) == ["30 w0"]
    watch = Watch()
    assert watch.see(times=5, w0=sample(4.0, rows=10), **HEALTHY) == []
    assert watch.see(w0=sample(1.0, rows=10), **HEALTHY) == []  # 2.5 ms over both
    assert watch.see(times=60, w0=sample(4.0, rows=0), **HEALTHY) == []


def test_rows_of_long_ago_do_not_count() -> None:
    watch = Watch()
    assert watch.see(times=2, w0=sample(4.0), **HEALTHY) == []
    assert watch.see(w0=sample(4.0, rows=19), **HEALTHY) == []
    assert watch.see(times=19, w0=sample(4.0, rows=0), **HEALTHY) == []
    assert watch.see(times=2, w0=sample(4.0), **HEALTHY) == []
    assert watch.see(w0=sample(4.0), **HEALTHY) == ["240 w0"]


def test_an_absence_begins_anew() -> None:
    watch = Watch()
    assert watch.see(times=2, w0=sample(4.0), **HEALTHY) == []
    assert watch.see(**HEALTHY) == []
    assert watch.see(times=3, w0=sample(4.0, rows=20), **HEALTHY) == ["50 w0"]
    assert watch.see(times=9, w1=Sample(runtime="s64", rows=0, busy_s=0.0, expected_ms=1.0)) == []


def test_slower_than_the_peers_but_as_the_profile_says_is_fine() -> None:
    assert Watch().see(times=50, w0=sample(2.9), w1=sample(0.5), w2=sample(0.5)) == []


def test_peers_are_those_of_the_same_runtime() -> None:
    assert Watch().see(times=3, w0=sample(16.0, "s512"), **HEALTHY) == ["20 w0"]
    assert Watch().see(times=50, w0=sample(14.0, "s512"), **HEALTHY) == []


def test_peers_that_were_idle_leave_the_question_open() -> None:
    assert Watch().see(times=50, w0=sample(4.0), w1=sample(1.0, rows=3)) == []


def test_the_worst_goes_first_and_the_next_when_it_is_back() -> None:
    watch = Watch()
    four = {"w2": sample(1.0), "w3": sample(1.0), "w4": sample(1.0)}
    assert watch.see(times=3, w0=sample(4.0), w1=sample(6.0), **four) == ["20 w1"]
    assert watch.see(times=4, w0=sample(4.0), **four) == []  # w1 is away
    assert watch.see(w0=sample(4.0), w1=sample(1.0), **four) == ["70 w0"]


def test_a_worker_that_never_comes_back_holds_the_others_up_for_its_grace_period_only() -> None:
    watch = Watch(grace_s=60)
    four = {"w2": sample(1.0), "w3": sample(1.0), "w4": sample(1.0)}
    assert watch.see(times=3, w0=sample(4.0), w1=sample(6.0), **four) == ["20 w1"]
    assert watch.see(times=9, w0=sample(4.0), **four) == ["80 w0"]


def test_a_recycled_worker_has_a_grace_period() -> None:
    watch = Watch(grace_s=60)
    assert watch.see(times=3, w0=sample(4.0), **HEALTHY) == ["20 w0"]
    assert watch.see(times=7, w0=sample(4.0), **HEALTHY) == []  # until 80 s, and three in a row after that
    assert watch.see(w0=sample(4.0), **HEALTHY) == ["100 w0"]


def test_the_grace_period_doubles_where_restarting_does_not_help() -> None:
    watch = Watch(grace_s=60)
    assert watch.see(times=1000, w0=sample(4.0))[:4] == ["20 w0", "100 w0", "240 w0", "500 w0"]
    late = watch.see(times=1000, w0=sample(4.0))
    assert [float(line.split()[0]) for line in late] == [11160, 14780, 18400]  # an hour, and three observations
    watch.see(times=400, w0=sample(1.0))
    assert len(watch.see(times=12, w0=sample(4.0))) == 2


def test_another_runtime_in_between_ends_the_row_of_slow_observations() -> None:
    watch = Watch(factor=2.0)
    for runtime, rows in (("s64", 20), ("s64", 20), ("s512", 0), ("s64", 20)):
        assert watch.see(times=1, w0=sample(2.0, runtime, rows)) == []


@given(
    rounds=st.lists(
        st.dictionaries(
            st.sampled_from(["w0", "w1", "w2", "w3", "w4"]),
            st.builds(sample, st.floats(0.1, 20), st.sampled_from(["s64", "s512"]), st.integers(0, 60)),
        ),
        max_size=40,
    )
)
def test_never_without_cause(rounds: list[dict[str, Sample]]) -> None:
    """One suspect at a time, slow by its profile in three observations, and never twice within its grace period."""
    watch, last = Watch(factor=2.0, grace_s=60), dict.fromkeys(["w0", "w1", "w2", "w3", "w4"], -1000.0)
    ended: dict[str, list[Sample]] = defaultdict(list)  # observations, without a gap, of one runtime
    begun: dict[str, list[Sample]] = defaultdict(list)
    for number, workers in enumerate(rounds):
        for worker in last:
            now = workers.get(worker)
            before = (begun[worker] or ended[worker])[-1:]
            if now is None or (before and before[0].runtime != now.runtime):
                ended[worker], begun[worker] = [], []
            if now is not None:
                begun[worker].append(now)
                if sum(s.rows for s in begun[worker]) >= 20:
                    rows, busy_s = sum(s.rows for s in begun[worker]), sum(s.busy_s for s in begun[worker])
                    ended[worker].append(dataclasses.replace(now, rows=rows, busy_s=busy_s))
                    begun[worker] = []
                elif len(begun[worker]) == 20:
                    ended[worker], begun[worker] = [], []
        suspects = watch.detector.observe(number * 10.0, workers)
        assert len(suspects) <= 1
        for suspect in suspects:
            assert suspect.ratio >= 2
            assert not begun[suspect.worker]
            recent = ended[suspect.worker][-3:]
            assert len(recent) == 3
            assert all(s.row_ms >= 1.999999 * s.expected_ms for s in recent)
            assert number * 10.0 - last[suspect.worker] >= 60
            last[suspect.worker] = number * 10.0


@given(st.lists(st.floats(1.0, 1.9), min_size=2, max_size=6), st.floats(0.1, 50))
def test_workers_that_are_alike_are_never_suspect(noise: list[float], machine: float) -> None:
    """However wrong the profile is for all of them."""
    workers = {f"w{i}": sample(machine * share) for i, share in enumerate(noise)}
    assert Watch(factor=2.0).see(times=10, **workers) == []
