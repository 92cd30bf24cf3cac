"""Random scenarios: every arrival ends in exactly one outcome, and what is told of a run fits together."""

from __future__ import annotations

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from arlo.simulator.report.result import Result
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Allocate, Dispatch, Fault, RuntimeModel, Scale, Scenario
from tests.fakes.simulated import Phases, scenario

POLICIES = ("rs", "ilb", "ig", "infaas", "eft", "late")
DURATION_S = 6.0


@st.composite
def runtimes(draw: st.DrawFn) -> tuple[RuntimeModel, ...]:
    lengths = sorted(draw(st.sets(st.sampled_from([64, 128, 256, 512]), min_size=1, max_size=3)))
    made = []
    for length in lengths:
        batch, ms = draw(st.sampled_from([1, 1, 4])), length / 40
        points: tuple[tuple[int, int, float], ...] = ((length, 1, ms),)
        if batch > 1:
            points += ((length, batch, ms * 2),)
        made.append(RuntimeModel(name=f"s{length}", max_length=length, points=points, max_batch=batch))
    if draw(st.booleans()):
        longest = lengths[-1]
        points = ((1, 1, 1.0), (longest, 1, longest / 30))
        made.append(RuntimeModel(name="d", max_length=longest, points=points, dynamic=True))
    return tuple(made)


@st.composite
def faults(draw: st.DrawFn, workers: int) -> Fault:
    return Fault(
        at_s=draw(st.integers(0, 59)) / 10,
        worker=draw(st.integers(0, workers - 1)),
        kind=draw(st.sampled_from(["fail", "fail", "slow"])),
        restart_s=draw(st.sampled_from([0.3, None, 2.0, 0.0])),
        factor=draw(st.sampled_from([0.5, 4.0])),
    )


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    kinds, workers = draw(runtimes()), draw(st.integers(1, 6))
    spread = np.random.default_rng(draw(st.integers(0, 9))).multinomial(workers, np.ones(len(kinds)) / len(kinds))
    rates, tokens = st.sampled_from([600.0, 200.0, 20.0, 0.5]), st.sampled_from([60, 200, 512, 1, 700])
    phases = tuple(
        (DURATION_S / 3, draw(rates), tuple(sorted(draw(st.sets(tokens, min_size=1, max_size=3))))) for _ in range(3)
    )
    return scenario(
        Phases(phases, seed=draw(st.integers(0, 99))),
        runtimes=kinds,
        workers=workers,
        slo_ms=draw(st.sampled_from([10.0, 100.0])),
        dispatch=Dispatch(policy=draw(st.sampled_from(POLICIES)), max_queued=draw(st.sampled_from([10**9, 100, 5, 0]))),
        allocate=Allocate(
            kind=draw(st.sampled_from(["periodic", "periodic", "oracle", "even", "global", "fixed"])),
            start=draw(st.sampled_from(["even", "first", "global", tuple(spread.tolist())])),
            period_s=draw(st.sampled_from([2.0, 0.7, 50.0])),
            objective="paper",
            replacement_s=draw(st.sampled_from([0.0, 0.25, 1.0])),
            max_parallel=draw(st.sampled_from([None, 1, 5])),
            shift=draw(st.booleans()),
        ),
        scale=Scale(
            kind=draw(st.sampled_from(["headroom", "none", "target"])),
            max_workers=8,
            scale_in_period_s=1.0,
            cooldown_s=draw(st.sampled_from([0.0, 1.0])),
            window_s=2.0,
            start_s=draw(st.sampled_from([0.0, 0.5])),
            new_runtime=draw(st.sampled_from(["longest", "least_headroom"])),
        ),
        faults=tuple(draw(st.lists(faults(workers), max_size=4))),
        overhead_ms=draw(st.sampled_from([0.0, 0.8])),
        hop_out_ms=draw(st.sampled_from([0.0, 0.3])),
        hop_back_ms=draw(st.sampled_from([0.0, 0.3])),
        timeout_ms=draw(st.sampled_from([None, 300.0, 20.0])),
        retries=draw(st.integers(0, 1)),
        noise_cv=draw(st.sampled_from([0.0, 0.3])),
        warmup_s=draw(st.sampled_from([0.0, 0.0, 1.3])),
        interval_s=draw(st.sampled_from([0.25, 1.0, 4.0])),
        record=True,
    )


def arrivals(given_: Scenario) -> int:
    return sum(int((arrived >= given_.warmup_s * 1e9).sum()) for arrived, _ in given_.workload.chunks())


def check(given_: Scenario, result: Result) -> None:
    """What holds for every run."""
    assert sum(result.outcomes.values()) == result.requests == arrivals(given_)
    assert result.columns is not None
    counted = result.columns["arrived_ns"] >= given_.warmup_s * 1e9
    names = ("on_time", "late", "rejected", "expired", "failed")
    by_row = np.bincount(result.columns["outcome"][counted], minlength=len(names))
    assert dict(zip(names, by_row.tolist(), strict=True)) == {name: result.outcomes[name] for name in names}
    latency = result.columns["latency_ns"][counted]
    answered = np.isin(result.columns["outcome"][counted], (0, 1))
    assert (latency[answered] > 0).all()
    assert ((latency[answered] <= given_.slo_ms * 1e6) == (result.columns["outcome"][counted][answered] == 0)).all()
    if given_.timeout_ms is not None:
        assert (latency[answered] <= given_.timeout_ms * 1e6).all()
    assert sum(row["served"] for row in result.runtimes) == answered.sum()
    too_long = result.columns["length"] > max(runtime.max_length for runtime in given_.runtimes)
    assert (result.columns["outcome"][too_long] == 2).all()
    line = result.timeline
    assert line["arrived"].sum() == len(counted)
    assert line["answered"].sum() + line["unanswered"].sum() == len(counted)
    if given_.warmup_s == 0:
        assert line["on_time"].sum() == result.outcomes["on_time"]
    assert (line["serving"] <= line["present"]).all()
    instances = sum(line[f"instances.{runtime.name}"] for runtime in given_.runtimes)
    assert (instances == line["serving"]).all()
    assert line["present"].max() <= result.workers_max + (given_.warmup_s > 0) * 8
    assert 0 <= result.utilization <= 1 + 1e-9
    assert result.workers_mean <= result.workers_max
    if given_.scale.kind == "none":
        assert result.workers_max <= given_.workers
        if not given_.faults:
            assert (line["present"] == given_.workers).all()
    if given_.allocate.kind in ("even", "global", "fixed"):
        assert result.replacements == 0


@settings(max_examples=70, deadline=None)
@given(given_=scenarios())
def test_every_arrival_ends_once_and_the_books_agree(given_: Scenario) -> None:
    result = run(given_)
    event(f"{given_.allocate.kind}, replaced: {result.replacements > 0}")
    event(f"scaled: {result.workers_max > given_.workers}")
    for name, count in result.outcomes.items():
        event(f"{name}: {count > 0}")
    check(given_, result)
