"""The testbed's own arithmetic: pairing, errors and their spread, schemes, and the simulated side of a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from arlo.simulator.profiles import capacity
from arlo.simulator.scenario.scenario import RuntimeModel
from arlo.traces import Trace, poisson
from benchmarks.figures import fidelity
from benchmarks.testbed import compare, results, scaled, scaling
from benchmarks.testbed.calibrate import Calibration, _between_ms
from benchmarks.testbed.cluster import PATIENT_MS
from benchmarks.testbed.schemes import CONTENDERS, LONGEST, Bed, Cluster, even, execution_ms, tweets
from benchmarks.testbed.simulated import simulate

DISPATCH = {"policy": "rs", "lambda": 0.85, "alpha": 0.9, "max_peek": 6, "max_queued": 4096}


def side(latency_ms: list[float] | NDArray[np.float64], *, rate_rps: float = 10.0) -> compare.Side:
    latency = np.array(latency_ms, np.float64)
    n = len(latency)
    return compare.Side(
        arrived_s=np.arange(n) / rate_rps,
        length=np.full(n, 10, np.int32),
        latency_ms=latency,
        level=np.zeros(n, np.int32),
    )


def test_figures_count_all_arrivals() -> None:
    found = compare.figures(np.array([10.0, 20.0, 30.0, np.nan]), slo_ms=20)
    assert (found["requests"], found["answered"], found["mean_ms"], found["p50_ms"]) == (4, 3, 20, 20)
    assert found["attainment"] == 0.5
    with pytest.raises(ValueError, match="nothing was answered"):
        compare.figures(np.array([np.nan]), slo_ms=20)


def test_errors_are_of_the_simulator() -> None:
    real = side(np.linspace(10, 20, 500))
    simulated = dataclasses.replace(real, latency_ms=real.latency_ms * 1.1)
    found = compare.compare(real, simulated, slo_ms=15)
    for name in compare.LATENCIES:
        assert found["error_percent"][name] == pytest.approx(10)
    assert found["error_percent"]["attainment"] < 0
    # The same factor everywhere: resampling cannot move it.
    assert found["spread_percent"]["mean_ms"] == pytest.approx(0, abs=1e-9)
    assert found["by_request"]["within_2_ms"] == 1
    assert found["by_request"]["same_level"] == 1


def test_spread_is_that_of_the_mean() -> None:
    rng = np.random.default_rng(3)
    base = rng.uniform(50, 150, 4000)
    real = side(base)
    simulated = dataclasses.replace(real, latency_ms=base + rng.normal(0, 10, 4000))
    # Independent differences of 10 ms on a mean of 100: 10 / sqrt(4000) = 0.16 %.
    assert compare.spread_percent(real, simulated)["mean_ms"] == pytest.approx(0.158, rel=0.2)


def test_different_requests_are_refused() -> None:
    real = side([1, 2, 3])
    with pytest.raises(ValueError, match="different requests"):
        compare.compare(real, side([1, 2]), slo_ms=5)
    with pytest.raises(ValueError, match="different requests"):
        compare.compare(real, dataclasses.replace(real, length=np.array([10, 11, 10], np.int32)), slo_ms=5)


def test_warmup_is_cut_by_arrival() -> None:
    kept = side([1, 2, 3, 4], rate_rps=1).after(2)
    assert kept.latency_ms.tolist() == [3, 4]


def test_curve_ends_at_the_largest() -> None:
    latency = np.append(np.arange(1.0, 102.0), np.nan)
    found = compare.curve(latency)
    assert len(found) == len(compare.QUANTILES)
    assert (found[0], found[-1]) == (1, 101)
    assert found == sorted(found)


def test_clusters_use_all_workers() -> None:
    bed = Bed()
    for name in CONTENDERS:
        placed = bed.cluster(name, 0.65 * bed.full_rate_rps).placed()
        assert len(placed) == bed.workers
        assert placed[-1].max_length == LONGEST
    assert even(10, 8) == (1, 1, 1, 1, 1, 1, 2, 2)
    assert Bed(stretch=20).full_rate_rps == pytest.approx(bed.full_rate_rps / 2)


def test_capacities_do_not_depend_on_the_stretch() -> None:
    for name in ("st", "infaas", "arlo"):
        plain, stretched = Bed(stretch=1).cluster(name, 100), Bed(stretch=10).cluster(name, 10)
        for one, other in zip(plain.runtimes, stretched.runtimes, strict=True):
            assert capacity(one, plain.slo_ms) == capacity(other, stretched.slo_ms)


def test_dynamic_runtime_takes_the_time_of_the_length() -> None:
    bed = Bed()
    dynamic, static = bed.all_runtimes[-1], bed.static[-1]
    took = execution_ms(dynamic, np.array([20, 128, 512], np.int32))
    assert took[0] < took[1] < took[2]
    assert (execution_ms(static, np.array([20, 512], np.int32)) == static.points[-1][2]).all()
    assert took[2] > static.points[-1][2]


def test_time_between_answers_of_a_burst() -> None:
    # The first of ten answers come late; the order in which they are recorded does not matter.
    done_s = np.concatenate([[0.5, 0.6], 1 + 0.02 * np.arange(8)])[None, ::-1]
    assert _between_ms(done_s).tolist() == pytest.approx([20.0])


def test_simulated_side_by_hand() -> None:
    # Two at once on one instance that takes 10 ms, and one later.
    runtime = RuntimeModel(name="one", max_length=512, points=((512, 1, 10.0),), inflight_limit=2)
    cluster = Cluster("one", "uniform", (runtime,), (1,), 100)
    trace = Trace(arrived_at_s=np.array([0.0, 0.0, 0.1]), length=np.array([5, 6, 7], np.int32))
    told = Calibration(overhead_ms=0.5, hop_out_ms=0.25, hop_back_ms=0.25, turn_around_ms=1.0)
    found = simulate(trace, cluster, told, DISPATCH, PATIENT_MS)
    # 0.25 there, 11 executing, 0.25 back, 0.5 overhead; the second waits at the worker for the first one's 11 ms.
    assert found.latency_ms.tolist() == pytest.approx([12.0, 23.0, 12.0])
    assert found.level.tolist() == [0, 0, 0]
    plain = simulate(trace, cluster, Calibration(), DISPATCH, PATIENT_MS)
    assert plain.latency_ms.tolist() == pytest.approx([10.0, 20.0, 10.0])


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_simulates(name: str) -> None:
    bed = Bed()
    rate = 0.2 * bed.full_rate_rps
    cluster = bed.cluster(name, rate)
    trace = poisson(rate, 5.0, tweets, seed=2)
    found = simulate(trace, cluster, Calibration(), DISPATCH, PATIENT_MS)
    placed = cluster.placed()
    levels = sorted({r.max_length for r in placed})
    assert (np.array(levels)[found.level] >= trace.length).all()
    # Nothing is faster than its own runtime.
    least = np.zeros(len(trace))
    for level, longest in enumerate(levels):
        runtime = next(r for r in placed if r.max_length == longest)
        least = np.where(found.level == level, execution_ms(runtime, trace.length), least)
    assert (found.latency_ms >= least - 1e-3).all()
    assert (found.latency_ms <= least + 1e-3).any()


def test_rows_and_summary() -> None:
    real = side(np.linspace(10, 20, 200))
    pair = compare.compare(real, dataclasses.replace(real, latency_ms=real.latency_ms * 0.97), slo_ms=15)
    far = compare.compare(real, dataclasses.replace(real, latency_ms=real.latency_ms * 1.5), slo_ms=15)
    run = {
        "scheme": "rs", "policy": "rs", "rate_rps": 1.0, "load": 0.4, "timeout_ms": PATIENT_MS, "round": 0,
        "valid": True,
        "cluster": compare.figures(real.latency_ms, 15), "curve_ms": compare.curve(real.latency_ms),
        "calibrated": pair, "paper": far,
    }  # fmt: skip
    rows = results.of_run(run)
    assert [row["side"] for row in rows] == ["cluster", "calibrated", "paper"]
    assert rows[1]["error_mean_ms"] == pytest.approx(-3)
    assert rows[0]["mean_ms"] == pytest.approx(15)
    bad = {**run, "valid": False, "calibrated": far}
    summary = results.summarize([run, bad])
    assert (summary["runs"], summary["valid"], summary["without_valid"]) == (2, 1, 0)
    assert results.summarize([run, {**bad, "round": 1}])["without_valid"] == 1
    assert summary["calibrated"]["mean_ms"] == pytest.approx(3)
    assert summary["paper"]["p98_ms"] == pytest.approx(50)


def test_missing_results_say_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr("benchmarks.harness.RESULTS", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"benchmarks\.testbed --schemes --model bert-large"):
        results.load("testbed_schemes_bert-large")


# --- a cluster that scales ---


def event(at_s: float, name: str, **fields: Any) -> scaled.Event:
    return at_s, name, fields


EVENTS = [
    event(90.0, "worker_step", worker="w0", step="steady"),
    event(99.0, "scaling", action="remove", worker="w1", reason="calm"),
    event(99.5, "worker_removed", worker="w1"),  # before the first request
    event(110.0, "scaling", action="add", worker=None, reason="late"),
    event(111.0, "worker_step", worker="w2", step="loading"),
    event(111.5, "worker_moved", worker="w0", before=["a"], after="b", seconds=1.5, out_of_service_s=0.5),
    event(112.0, "worker_step", worker="w2", step="steady"),
    event(113.0, "worker_step", worker="w2", step="steady"),
    event(120.0, "scaling", action="add", worker=None, reason="late"),
    event(121.0, "scaling_failed", action="add", error="no"),
    event(130.0, "scaling", action="remove", worker="w2", reason="calm"),
    event(131.0, "worker_moved", worker="w2", before=["a"], after=None, seconds=1.5, out_of_service_s=0.0),
    event(135.0, "worker_removed", worker="w2"),
    event(160.0, "scaling", action="add", worker=None, reason="late"),  # when the trace is over
]


def test_workers_over_time_by_hand() -> None:
    steps = scaled.presence(EVENTS, 2, 100.0, 50.0)
    assert steps == [(0.0, 2), (0.0, 1), (10.0, 2), (20.0, 3), (21.0, 2), (35.0, 1)]
    # 10 s of one, 25 s of two and one second of a third, 15 s of one.
    assert scaled.weighted(steps, 50.0) == pytest.approx((10 + 50 + 1 + 15) / 50)
    assert scaled.starts(EVENTS, ["w0", "w1"]) == [2.0]
    assert scaled.moves(EVENTS) == [{"seconds": 1.5, "out_of_service_s": 0.5}]


def test_events_of_the_control_plane_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    from arlo.control import events
    from arlo.control.reconcile.reconciler import log

    level = log.level
    with scaled.events_kept() as kept:
        events.emit(log, "worker_step", level=10, worker="w0", step="steady")
        log.info("no event")
    events.emit(log, "later", worker="w0")
    assert [(name, fields) for _, name, fields in kept] == [("worker_step", {"worker": "w0", "step": "steady"})]
    assert log.level == level


def test_the_whole_course_is_squeezed() -> None:
    short, long = scaled.course(200.0, 30.0, 1), scaled.course(200.0, 60.0, 1)
    assert (short.squeeze, long.squeeze) == (0.05, 0.1)
    assert (long.period_s, long.scale_in_period_s, long.cooldown_s) == (12.0, 6.0, 1.0)
    for what in (short, long):
        assert len(what.trace) == pytest.approx(200 * what.duration_s, rel=0.1)
        assert what.trace.duration_s < what.duration_s
        rates = [rate for _, rate in what.load()]
        assert len(rates) * scaled.LOAD_S == what.duration_s
        assert max(rates) > 3 * rates[0]  # the window goes from a quarter of its mean to one and a half times it


@pytest.mark.long
@pytest.mark.parametrize("name", scaled.CONTENDERS)
def test_both_sides_scale_alike(name: str, tmp_path: Path) -> None:
    """The configuration of the control plane and the scenario say the same; the simulated side runs."""
    contender, what = scaled.CONTENDERS[name], scaled.course(250.0, 30.0, 1)
    bed = Bed(scaled.MODEL, 1.0, scaled.WORKERS)
    runtimes = scaled.runtimes_of(contender, bed)
    policy = {"st": "uniform", "dt": "uniform", "paper": "rs"}.get(name, "late")
    cluster = Cluster(name, policy, runtimes, scaled.first(contender, runtimes, what, bed.slo_ms, policy), bed.slo_ms)
    config = scaled.configure(tmp_path, contender, cluster, what)
    assert config.worker_count == scaled.WORKERS == sum(cluster.instances)
    assert config.worker_limits == (1, scaled.MOST)
    assert config.dispatch.policy == policy
    told = Calibration(overhead_ms=0.5, turn_around_ms=0.3)
    made = scaling.simulated(contender, cluster, what, told, start_s=1.5, replacement_s=0.2)
    assert made.scale.kind == config.scaling.policy
    for key in ("scale_out_share", "scale_in_share", "scale_in_period_s", "headroom", "cooldown_s"):
        assert getattr(made.scale, key) == getattr(config.scaling, key)
    assert (made.allocate.kind == "periodic") == config.control.reallocate == (contender.planned is not None)
    assert made.allocate.period_s == config.control.period_s
    if contender.planned is not None:
        assert made.allocate.objective == config.control.objective
        assert made.allocate.shift == config.control.early == config.control.make_before_break
        assert made.allocate.min_gain == config.control.min_gain
    found = scaling.of_simulation(scaling.simulate(made), bed.slo_ms)
    assert sum(found["outcomes"].values()) == len(what.trace)
    assert 1 <= found["workers_mean"] <= found["workers_max"] <= scaled.MOST
    # Sampled once a second there, exact here.
    assert scaled.weighted(found["workers"], 30.0) == pytest.approx(found["workers_mean"], abs=0.6)


def test_scaling_has_rows_tables_and_a_plot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(scheme: str, workers: float, problems: list[str]) -> dict[str, Any]:
        side = {
            "workers_mean": workers, "workers_max": 9, "mean_ms": 10.0, "p98_ms": 300.0, "attainment": 0.99,
            "outcomes": {"on_time": 10}, "workers": [[0.0, 5], [10.0, 9]],
        }  # fmt: skip
        return {
            "scheme": scheme, "title": scheme, "scaling": "target", "valid": not problems, "problems": problems,
            "cluster": side, "simulated": {**side, "workers_mean": workers / 2},
        }  # fmt: skip

    runs = [run("st", 8.0, []), run("paper", 6.0, []), run("arlo", 4.0, []), run("dt", 7.0, ["requests failed"])]
    runs.append(run("arlo-headroom", 2.0, []))  # fewer workers, but too few
    runs[-1]["cluster"]["attainment"] = 0.3
    names = ("requests", "duration_s", "slo_ms", "workers", "max_workers")
    document = {**dict.fromkeys(names, 10), "differences": ["a"], "not_here": "b", "runs": runs}
    monkeypatch.setattr(fidelity, "RESULTS", tmp_path)
    (tmp_path / "testbed_scaling.json").write_text(json.dumps(document))
    outcome = fidelity.run(SimpleNamespace())  # type: ignore[arg-type]
    rows = {row.target: row for row in outcome.rows}
    assert (rows["scaling_st"].ours, rows["scaling_st"].better) == (25.0, 50.0)
    assert rows["scaling_dt"].ours is None  # its run was not valid
    assert {row.target for row in outcome.rows} == set(fidelity.PAPER)
    table = next(table for table in outcome.tables if table.title.startswith("Scaling"))
    assert [row[1] for row in table.rows] == ["8.00", "6.00", "4.00", "7.00", "2.00"]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert outcome.plots[0].series[0].x == [0.0, 10.0, 10]
    assert scaling.line(runs[3]).endswith("not valid: requests failed")
