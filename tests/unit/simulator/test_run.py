"""run(): what a simulation adds up to, its determinism, its errors, and many of them at once."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from arlo.errors import ConfigError, EnvironmentProblem
from arlo.simulator.report.result import OUTCOMES, Result
from arlo.simulator.run import run, run_many
from arlo.simulator.scenario.scenario import Allocate, Dispatch, Fault, Scale, Scenario
from tests.fakes.simulated import LONG, MS, SECOND, SHORT, Listed, Phases, evenly, listed, scenario


def fixed(*counts: int) -> Allocate:
    return Allocate(kind="fixed", start=counts)


def same(one: Result, two: Result) -> bool:
    """Every field but the wall time, to the last bit."""
    for field in dataclasses.fields(Result):
        first, second = getattr(one, field.name), getattr(two, field.name)
        if field.name == "wall_s":
            continue
        if isinstance(first, dict) and all(isinstance(value, np.ndarray) for value in first.values()):
            if first.keys() != second.keys() or any(first[k].tobytes() != second[k].tobytes() for k in first):
                return False
        elif isinstance(first, np.ndarray):
            if first.tobytes() != second.tobytes():
                return False
        elif first != second:
            return False
    return True


def busy_scenario(**fields: Any) -> Scenario:
    """A bit of everything: plans, replacements, scaling, faults, noise."""
    workload = Phases(((20, 600.0, (30, 60, 400)), (20, 1700.0, (30, 500)), (10, 300.0, (500,))))
    given: dict[str, Any] = {
        "workers": 4,
        "allocate": Allocate(period_s=7.0),
        "scale": Scale(kind="headroom", max_workers=8, scale_in_period_s=5.0),
        "faults": (
            Fault(at_s=12.34, worker=1, kind="fail", restart_s=2.0),
            Fault(at_s=30, worker=0, kind="slow", factor=2),
        ),
        "noise_cv": 0.2,
        "overhead_ms": 0.8,
        "hop_out_ms": 0.1,
        "hop_back_ms": 0.1,
        "seed": 3,
        "record": True,
    }  # fmt: skip
    return scenario(workload, **{**given, **fields})


def test_one_request_by_hand() -> None:
    """Length 100 pads to 512: 5 ms of execution and 0.8 ms of overhead."""
    result = run(scenario(Listed((SECOND,), (100,), 2.0), allocate=fixed(1, 1), overhead_ms=0.8, record=True))
    assert result.requests == result.outcomes["on_time"] == 1
    assert result.mean_ms == result.max_ms == 5.8
    assert result.mean_execution_ms == 5.0
    assert result.mean_wait_ms == 0.0
    assert result.p50_ms == pytest.approx(5.8, rel=1e-3)
    assert result.padding == 1 - 100 / 512
    assert result.goodput_rps == 0.5
    assert result.slo_attainment == 1.0
    assert result.utilization == pytest.approx(0.005 / 4)
    assert result.workers_mean == result.workers_max == 2
    assert result.gpu_hours == pytest.approx(4 / 3600)
    assert [row["served"] for row in result.runtimes] == [0, 1]
    assert result.runtimes[1]["busy_s"] == 0.005
    assert result.columns is not None
    assert result.columns["latency_ns"].tolist() == [5_800_000]
    assert result.timeline["arrived"].tolist() == [0.0, 1.0]
    assert result.timeline["instances.long"].tolist() == [1.0, 1.0]


def test_outcomes_other_than_answers() -> None:
    """Too long, a full queue, and clients that give up: the worker has become slower than anyone knows."""
    given: dict[str, Any] = {
        "runtimes": (LONG,),
        "workers": 1,
        "dispatch": Dispatch(policy="uniform", max_queued=1, inflight_limit=1),
        "faults": (Fault(at_s=0.001, worker=0, kind="slow", factor=4.0),),
    }
    arrivals = Listed((0, 0, 0, 0, 6 * MS), (600, 5, 5, 5, 5), 1.0)
    result = run(scenario(arrivals, timeout_ms=20.0, record=True, **given))
    # The second is executed. The third, too, from 5 to 25 ms, when its client has gone; the last waits for that, and
    # cannot be answered any more. The fourth finds the queue full.
    assert result.outcomes == {
        "on_time": 1, "late": 0, "rejected": 2, "expired": 2, "cancelled": 0, "failed": 0,
    }  # fmt: skip
    assert tuple(result.outcomes) == OUTCOMES
    assert result.timeline["unanswered"].sum() == 4


def test_nothing_answered_has_no_latency() -> None:
    result = run(scenario(Listed((0,), (600,), 1.0), allocate=fixed(1, 1)))
    assert result.outcomes["rejected"] == 1
    assert np.isnan(result.mean_ms)
    assert np.isnan(result.p98_ms)
    assert np.isnan(result.cdf_ms).all()
    assert result.slo_attainment == 0.0


def test_no_request_at_all() -> None:
    result = run(scenario(Listed((), (), 3.0), allocate=fixed(1, 1)))
    assert result.requests == 0
    assert np.isnan(result.slo_attainment)
    assert result.timeline["time_s"].tolist() == [1.0, 2.0, 3.0]
    assert result.gpu_hours == pytest.approx(6 / 3600)


def test_what_waits_at_the_end_is_served_and_has_a_row() -> None:
    """50 requests of 5 ms in the last moment of a second: answered until 1.25 s."""
    at = tuple(SECOND - 1 for _ in range(50))
    result = run(scenario(Listed(at, (500,) * 50, 1.0), runtimes=(LONG,), workers=1))
    assert result.outcomes["on_time"] + result.outcomes["late"] == 50
    assert result.timeline["arrived"].tolist() == [50.0, 0.0]
    assert result.timeline["answered"].tolist() == [0.0, 50.0]
    assert result.timeline["time_s"][0] == 1.0
    assert result.timeline["time_s"][1] == pytest.approx(1.25)
    assert result.utilization == pytest.approx(0.0, abs=1e-8)  # of the second in which requests arrive


def test_warm_up_is_served_but_not_counted() -> None:
    work = listed(evenly(10, 0, 4, 500), duration_s=4.0)
    result = run(scenario(work, runtimes=(LONG,), workers=2, warmup_s=1.0))
    assert result.requests == 30
    assert result.duration_s == 3.0
    assert result.goodput_rps == 10.0
    assert result.gpu_hours == pytest.approx(2 * 3 / 3600)
    assert result.utilization == pytest.approx(30 * 0.005 / (2 * 3))
    assert result.timeline["arrived"].sum() == 40


@pytest.mark.parametrize("interval_s", [0.3, 1.0, 7.0, 100.0])
def test_the_timeline_adds_up_to_the_totals(interval_s: float) -> None:
    result = run(busy_scenario(interval_s=interval_s))
    line = result.timeline
    assert line["arrived"].sum() == result.requests
    assert line["on_time"].sum() == result.outcomes["on_time"]
    assert line["answered"].sum() == result.outcomes["on_time"] + result.outcomes["late"]
    assert line["unanswered"].sum() == sum(result.outcomes[name] for name in ("rejected", "expired", "failed"))
    answered = line["answered"] > 0
    weighted = (line["mean_ms"] * line["answered"])[answered].sum() / line["answered"].sum()
    assert weighted == pytest.approx(result.mean_ms, rel=1e-9)
    assert (np.diff(line["time_s"]) > 0).all()


def test_the_interval_of_the_timeline_changes_nothing() -> None:
    one, two = run(busy_scenario(interval_s=0.5)), run(busy_scenario(interval_s=13.0))
    assert same(dataclasses.replace(one, timeline={}), dataclasses.replace(two, timeline={}))


def test_how_the_workload_is_cut_changes_nothing() -> None:
    requests = (evenly(170, 0, 9, 30), evenly(90, 0, 9, 500))
    results = [run(scenario(listed(*requests, duration_s=9.0, chunk=chunk))) for chunk in (1, 97, 10_000)]
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_the_same_scenario_twice_is_the_same_to_the_last_bit() -> None:
    one, two = run(busy_scenario()), run(busy_scenario())
    assert one.replacements > 0
    assert one.workers_max > 4
    assert same(one, two)
    assert not same(one, run(busy_scenario(seed=4)))


def test_quantiles_are_those_of_the_columns() -> None:
    result = run(busy_scenario())
    assert result.columns is not None
    latency_ms = result.columns["latency_ns"] / 1e6
    latency_ms = latency_ms[latency_ms >= 0]
    for value, q in ((result.p50_ms, 0.5), (result.p90_ms, 0.9), (result.p98_ms, 0.98), (result.p99_ms, 0.99)):
        assert value == pytest.approx(np.quantile(latency_ms, q), rel=3e-3)
    assert len(result.cdf_q) == len(result.cdf_ms) == 512
    assert (np.diff(result.cdf_q) > 0).all()
    assert (np.diff(result.cdf_ms) >= 0).all()
    assert result.cdf_q[-1] == 1.0
    assert result.cdf_ms[-1] == pytest.approx(result.max_ms, rel=1e-3)
    assert (result.cdf_q > 0.99).sum() > 100


def test_p98_of_an_interval() -> None:
    """The timeline's p98, of buckets 1 part in 128 wide, against the requests themselves."""
    result = run(busy_scenario(interval_s=50.0, hop_back_ms=0.0))
    assert result.columns is not None
    done = result.columns["latency_ns"] >= 0
    ended = (result.columns["arrived_ns"] + result.columns["latency_ns"] - 800_000)[done]
    inside = result.columns["latency_ns"][done][ended < 50 * SECOND]
    assert result.timeline["p98_ms"][0] == pytest.approx(np.quantile(inside, 0.98) / 1e6, rel=0.01)


def test_progress_ends_at_the_end_and_may_stop_the_run() -> None:
    seen: list[tuple[float, float]] = []
    run(busy_scenario(), lambda now_s, of_s: seen.append((now_s, of_s)))
    assert seen[-1] == (50.0, 50.0)

    def stop(now_s: float, of_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(busy_scenario(), stop)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"warmup_s": 2.0}, "warm-up"),
        ({"workers": 0}, "at least one worker"),
        ({"faults": (Fault(at_s=5.0, worker=0, kind="fail"),)}, "a fault at 5 s"),
        ({"faults": (Fault(at_s=0.5, worker=2, kind="fail"),)}, "numbered 0 to 1"),
        ({"allocate": fixed(1, 2)}, "2 in all"),
        ({"runtimes": (SHORT, SHORT)}, "names of their own"),
        ({"dispatch": Dispatch(policy="best")}, "best"),
        ({"dispatch": Dispatch(policy="rs", alpha=2.0)}, "alpha"),
        ({"retries": -1}, "retries"),
        ({"allocate": Allocate(solver="exakt")}, "exact"),
        ({"interval_s": 0.0}, "interval"),
    ],
)
def test_a_scenario_that_makes_no_sense(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(scenario(Listed((0,), (5,), 1.0), **fields))


@dataclasses.dataclass(frozen=True)
class Broken(Listed):
    """A workload that cannot be read."""

    def chunks(self) -> Iterator[Any]:
        raise ConfigError("the trace is not there")


def small(seed: int) -> Scenario:
    return scenario(Phases(((2, 200.0, (30, 400)),), seed=seed), name=f"small {seed}")


def test_many_in_processes_are_those_one_by_one_and_in_order() -> None:
    scenarios = [small(seed) for seed in range(5)]
    told: list[tuple[int, int]] = []
    results = run_many(scenarios, 2, lambda done, of: told.append((done, of)))
    assert [result.scenario for result in results] == [f"small {seed}" for seed in range(5)]
    assert told == [(i, 5) for i in range(1, 6)]
    assert all(same(one, two) for one, two in zip(results, run_many(scenarios, 1), strict=True))


def test_many_raise_the_first_error() -> None:
    broken = scenario(Broken((), (), 1.0))
    with pytest.raises(ConfigError, match="the trace is not there"):
        run_many([small(0), broken, small(1)], 1)
    with pytest.raises(ConfigError, match="jobs"):
        run_many([small(0)], 0)


@dataclasses.dataclass(frozen=True)
class Deadly(Listed):
    """A workload that ends its process, as a system without memory does."""

    def chunks(self) -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_process_that_is_ended_is_told_of() -> None:
    deadly = scenario(Deadly((), (), 1.0))
    with pytest.raises(EnvironmentProblem, match="use fewer jobs than 2"):
        run_many([deadly, deadly], 2)


def test_arrivals_that_go_back_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"workload listed: .* must ascend"):
        run(scenario(Listed((5, 4), (5, 5), 1.0), allocate=fixed(1, 1)))


def test_a_capacity_that_is_stated_is_what_dispatch_uses() -> None:
    """INFaaS packs: with M = 1 every further request finds the instance full and goes to the next."""
    packed = [dataclasses.replace(LONG, capacity=m) for m in (1, 30)]
    results = [
        run(
            scenario(
                Listed((0,) * 4, (500,) * 4, 1.0), runtimes=(runtime,), workers=4, dispatch=Dispatch(policy="infaas")
            )
        )
        for runtime in packed
    ]
    assert results[0].mean_ms == 5.0
    assert results[1].mean_ms == 12.5


def test_bulk_fills_what_others_leave_and_is_in_no_latency() -> None:
    """One worker, 1 ms a row, 600 interactive rows a second and as many of the class bulk: 200 too many."""
    workload = listed(evenly(1200, 0.0, 10.0, 10), duration_s=10.0)
    given: dict[str, Any] = {
        "workers": 1,
        "runtimes": (SHORT,),
        "allocate": fixed(1),
        "timeout_ms": 100.0,
        "slo_ms": 50.0,
        "seed": 1,
    }
    result = run(scenario(workload, bulk_share=0.5, **given))
    assert result.requests + result.bulk == 12_000
    assert 5700 < result.bulk < 6300
    assert result.outcomes["on_time"] == result.requests
    assert result.p99_ms < 10
    assert result.bulk_answered < result.bulk
    assert result.bulk_mean_ms is not None
    assert result.bulk_mean_ms > 100
    assert result.bulk_rps == pytest.approx(result.bulk_answered / 10)
    none = run(scenario(workload, **given))
    assert (none.bulk, none.bulk_answered, none.bulk_mean_ms) == (0, 0, None)
    assert none.outcomes["on_time"] < none.requests == 12_000
    with pytest.raises(ConfigError, match="bulk_share: not in 0 to 1"):
        run(scenario(workload, bulk_share=1.5, **given))
