"""A simulation: the engine (src/simulate) and the other parts that a scenario needs.

    result = run(scenario)
    results = run_many(scenarios)          # over processes, in order

Time advances to the next moment that needs work: the end of an interval of the timeline, a plan, a look at a
replacement or at the load, a fault, the end of the requests that are known so far. At one moment the interval is closed
first, then faults happen, then the allocation, then scaling decides. The engine handles its events due at that moment
after all of these (its own order: src/simulate/engine.h).

Requests arrive until the workload ends. Waiting requests are then still served, with the workers as they are (those
that start or change come into service); requests that can never be served fail. GPU-hours and utilisation cover the
time in which the counted requests arrive: from the warm-up to the workload's end.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo import _core
from arlo.clock import monotonic_s
from arlo.errors import ConfigError, EnvironmentProblem
from arlo.simulator.foresight import SECOND_NS
from arlo.simulator.ladder import Ladder
from arlo.simulator.profiles import lognormal_quantiles
from arlo.simulator.report.result import OUTCOMES, Result
from arlo.simulator.report.timeline import GONE, Recent, Timeline
from arlo.simulator.scaler import Scaler
from arlo.simulator.scenario.merged import MergedWorkload
from arlo.simulator.scenario.scenario import Rows, Scenario
from arlo.simulator.world import NEVER_NS, World, in_ns

Progress = Callable[[float, float], None]  # simulated seconds, of how many

PROGRESS_S = 0.1  # of wall time, between two calls
# 512 quantiles: half of them evenly over the lower 90 %, half ever denser towards 1.
CDF_Q: NDArray[np.float64] = np.concatenate(
    [np.linspace(0.0, 0.9, 256, endpoint=False), 1 - np.geomspace(0.1, 1e-6, 255), [1.0]]
)


def run(scenario: Scenario, progress: Progress | None = None) -> Result:
    """Simulate a scenario. The same scenario gives the same Result to the last bit, but for `wall_s`.

    `progress` is called about ten times a second, and at the end. ConfigError for a scenario that makes no sense.
    """
    return _Run(scenario, progress).result()


def run_many(
    scenarios: Sequence[Scenario], jobs: int | None = None, progress: Callable[[int, int], None] | None = None
) -> list[Result]:
    """Simulate many scenarios, over `jobs` processes (None: as many as there are cores); the results in order.

    `progress` is called with the number done and the total. The processes are spawned once, so a script that calls this
    needs the usual `if __name__ == "__main__":`. The first error of a scenario is raised; scenarios that have not begun
    by then are not run.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"jobs is at least 1, not {jobs}")
    tell = progress if progress is not None else lambda done, of: None
    count = min(len(scenarios), jobs if jobs is not None else len(os.sched_getaffinity(0)))
    results: list[Result] = []
    for result in _one_by_one(scenarios) if count <= 1 else _in_processes(scenarios, count):
        results.append(result)
        tell(len(results), len(scenarios))
    return results


def _one_by_one(scenarios: Sequence[Scenario]) -> Iterator[Result]:
    return (run(scenario) for scenario in scenarios)


def _in_processes(scenarios: Sequence[Scenario], jobs: int) -> Iterator[Result]:
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_leave_signals)
    try:
        futures = [pool.submit(run, scenario) for scenario in scenarios]
        for future in futures:
            yield future.result()
    except BrokenProcessPool:
        raise EnvironmentProblem(
            f"a simulation's process was ended from outside, perhaps for lack of memory: use fewer jobs than {jobs}"
        ) from None
    except BaseException:  # a scenario's error, Ctrl-C: drop the rest
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_signals() -> None:
    """Ctrl-C reaches every process of a terminal; the parent ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Feeder:
    """Gives the engine the workload, chunk by chunk."""

    def __init__(self, scenario: Scenario, engine: _core.Simulation, rows: Rows) -> None:
        self._name = scenario.workload.name
        self._chunks = _by_model(scenario, rows)
        self._engine = engine
        self.fed_ns = 0  # all that arrives before it is fed; NEVER_NS: all is

    def more(self) -> None:
        """Another chunk, with something in it if there is any."""
        for arrived, length, model in self._chunks:
            if len(arrived):
                try:
                    self._engine.feed(
                        np.ascontiguousarray(arrived, np.int64), np.ascontiguousarray(length, np.int32), model
                    )
                except ValueError as error:
                    raise ConfigError(f"workload {self._name}: {error}") from None
                self.fed_ns = int(arrived[-1])
                return
        self.fed_ns = NEVER_NS


def _by_model(
    scenario: Scenario, rows: Rows
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint16] | None]]:
    if isinstance(scenario.workload, MergedWorkload):
        return iter(scenario.workload.chunks_by_model())
    return (rows.feed(arrived, length) for arrived, length in scenario.workload.chunks())


class _Plain(Rows):
    """Requests of one model, or of several."""

    def __init__(self, engine: _core.Simulation, max_length: int) -> None:
        self._engine, self._max_length = engine, max_length

    def sample(self, planner: Any, now_s: float) -> None:
        counts = self._engine.arrivals_by_length()[: self._max_length + 1]  # no runtime takes longer rows
        planner.add(now_s, 0.0, counts)


class _Run:
    """One simulation, used once."""

    def __init__(self, scenario: Scenario, progress: Progress | None) -> None:
        self._began_s = monotonic_s()
        self._scenario = scenario
        self._progress = progress
        self._told_s = self._began_s
        self._end_ns = in_ns(scenario.workload.duration_s)
        self._warm_ns = in_ns(scenario.warmup_s)
        _check(scenario)
        self._ladder = Ladder(scenario)
        self._engine = _engine(scenario, self._ladder)
        self._rows = _rows(scenario, self._ladder, self._engine)
        self._world = World(scenario, self._ladder, self._engine, self._rows)
        scales = scenario.scale.kind != "none"
        self._recent = Recent(self._engine, in_ns(scenario.scale.window_s) if scales else None)
        self._timeline = Timeline(self._engine, self._recent, self._ladder.names)
        self._scaler: Scaler | None = None
        if scales:
            self._scaler = Scaler(scenario, self._ladder, self._world, self._engine, self._recent)
        self._faults = sorted(scenario.faults, key=lambda fault: fault.at_s)  # stable: at one moment as given
        self._busy_before = 0.0  # worker-ns that were executed in the warm-up
        self._joules_before = 0.0

    def result(self) -> Result:
        """Run it."""
        self._world.start()
        feeder = _Feeder(self._scenario, self._engine, self._rows)
        interval_ns = in_ns(self._scenario.interval_s)
        next_row_ns = min(interval_ns, self._end_ns)
        fault = 0
        now_ns = 0
        while True:
            # Events due now.
            if now_ns == self._warm_ns:
                self._busy_before = float(self._engine.workers()["busy_ns"].sum())
                self._joules_before = self._joules()
            if now_ns == next_row_ns:
                self._timeline.row(now_ns)
                next_row_ns = min(now_ns + interval_ns, self._end_ns)
            if now_ns >= self._end_ns:
                break
            while fault < len(self._faults) and in_ns(self._faults[fault].at_s) == now_ns:
                self._world.fault(self._faults[fault], now_ns)
                fault += 1
            if self._world.next_ns <= now_ns:
                self._world.tick(now_ns)
            if self._scaler is not None and self._scaler.next_ns <= now_ns:
                self._scaler.tick(now_ns)
            # Advance to the next event.
            due_ns = min(next_row_ns, self._world.next_ns, self._end_ns)
            if fault < len(self._faults):
                due_ns = min(due_ns, in_ns(self._faults[fault].at_s))
            if self._scaler is not None:
                due_ns = min(due_ns, self._scaler.next_ns)
            if now_ns < self._warm_ns:
                due_ns = min(due_ns, self._warm_ns)
            while now_ns < due_ns:
                if feeder.fed_ns < due_ns:
                    feeder.more()
                now_ns = min(due_ns, feeder.fed_ns)
                self._engine.advance(now_ns)
                self._tell(now_ns)
        workers = self._engine.workers()
        queued_ns = float(workers["busy_ns"].sum()) - self._busy_before
        presence = _Presence(self._world.asked_ns, workers, self._warm_ns, self._end_ns)
        while feeder.fed_ns != NEVER_NS:
            feeder.more()
        self._engine.finish()
        self._timeline.rest(self._engine.now)
        if self._progress is not None:
            self._progress(self._scenario.workload.duration_s, self._scenario.workload.duration_s)
        return self._gather(presence, queued_ns)

    def _tell(self, now_ns: int) -> None:
        if self._progress is not None and monotonic_s() - self._told_s >= PROGRESS_S:
            self._told_s = monotonic_s()
            self._progress(now_ns / SECOND_NS, self._scenario.workload.duration_s)

    def _joules(self) -> float:
        """What busy workers have drawn so far, beyond idle; NaN where some watts are not known."""
        watts = np.array([model.watts or math.nan for model in self._scenario.runtimes])
        return float(self._engine.runtimes()["busy_ns"][: len(watts)] @ watts) / SECOND_NS

    def _gather(self, presence: _Presence, busy_ns: float) -> Result:
        scenario, totals = self._scenario, self._engine.totals()
        outcomes = {name: int(totals.get(name, 0)) for name in OUTCOMES}
        requests = int(totals["arrived"])
        if sum(outcomes.values()) != requests:
            raise RuntimeError(f"a defect of the simulator: {requests} requests arrived, but ended as {outcomes}")
        answered, bulk = outcomes["on_time"] + outcomes["late"], int(totals["bulk_answered"])
        nothing = float("nan")
        joules, figures = self._joules() - self._joules_before, self._rows.figures()
        duration_s = (self._end_ns - self._warm_ns) / SECOND_NS
        quantiles = self._engine.quantiles_ns(np.array([0.5, 0.9, 0.98, 0.99])) / 1e6 if answered else [nothing] * 4
        cdf_ms = np.asarray(self._engine.quantiles_ns(CDF_Q)) / 1e6 if answered else np.full(len(CDF_Q), nothing)
        return Result(
            scenario=scenario.name,
            requests=requests,
            duration_s=duration_s,
            outcomes=outcomes,
            mean_ms=totals["latency_sum_ns"] / answered / 1e6 if answered else nothing,
            p50_ms=float(quantiles[0]),
            p90_ms=float(quantiles[1]),
            p98_ms=float(quantiles[2]),
            p99_ms=float(quantiles[3]),
            max_ms=totals["latency_max_ns"] / 1e6 if answered else nothing,
            mean_wait_ms=totals["wait_sum_ns"] / answered / 1e6 if answered else nothing,
            mean_execution_ms=totals["execute_sum_ns"] / answered / 1e6 if answered else nothing,
            slo_ms=scenario.slo_ms,
            slo_attainment=outcomes["on_time"] / requests if requests else nothing,
            goodput_rps=outcomes["on_time"] / duration_s,
            workers_mean=presence.worker_ns / (self._end_ns - self._warm_ns),
            workers_max=presence.most,
            gpu_hours=presence.worker_ns / SECOND_NS / 3600,
            utilization=busy_ns / presence.worker_ns if presence.worker_ns else 0.0,
            padding=1 - totals["tokens"] / totals["padded_tokens"] if totals["padded_tokens"] else 0.0,
            demoted=totals["demoted"] / answered if answered else 0.0,
            mean_batch=totals["rows"] / totals["batches"] if totals["batches"] else nothing,
            bulk=int(totals["bulk_arrived"]),
            bulk_answered=bulk,
            bulk_rps=bulk / duration_s,
            bulk_mean_ms=totals["bulk_latency_sum_ns"] / bulk / 1e6 if bulk else None,
            retried=int(totals["retried"]),
            figures=figures,
            joules=figures.joules if math.isnan(joules) else joules / max(answered, 1),
            joules_total=None if math.isnan(joules) else joules,
            replacements=self._world.replacements,
            allocations=self._world.solved,
            wall_s=monotonic_s() - self._began_s,
            cdf_ms=cdf_ms,
            cdf_q=CDF_Q.copy(),
            runtimes=tuple(self._runtime_rows()),
            models=tuple(self._model_rows(duration_s)),
            timeline=self._timeline.columns(),
            columns=dict(self._engine.columns()) if scenario.record else None,
        )

    def _model_rows(self, duration_s: float) -> Iterator[dict[str, str | int | float]]:
        for number, model in enumerate(self._scenario.models):
            totals = self._engine.totals(number)
            requests, on_time, late = (int(totals[key]) for key in ("arrived", "on_time", "late"))
            answered = on_time + late
            p98, p99 = self._engine.quantiles_ns(np.array([0.98, 0.99]), number) / 1e6 if answered else (math.nan,) * 2
            yield {
                "name": model.name,
                "requests": requests,
                "on_time": on_time,
                "late": late,
                "unanswered": requests - answered,
                "slo_ms": model.slo_ms,
                "slo_attainment": on_time / requests if requests else math.nan,
                "goodput_rps": on_time / duration_s,
                "mean_ms": totals["latency_sum_ns"] / answered / 1e6 if answered else math.nan,
                "p98_ms": float(p98),
                "p99_ms": float(p99),
            }

    def _runtime_rows(self) -> Iterator[dict[str, str | int | float]]:
        columns = self._engine.runtimes()
        for i, model in enumerate(self._scenario.runtimes):
            yield {
                "name": model.name,
                "max_length": model.max_length,
                "served": int(columns["served"][i]),
                "demoted": int(columns["demoted"][i]),
                "batches": int(columns["batches"][i]),
                "busy_s": float(columns["busy_ns"][i]) / SECOND_NS,
            }


class _Presence:
    """Workers over a span of time, each from the moment that it was asked for until it is gone."""

    def __init__(
        self, asked_ns: Sequence[int], workers: dict[str, NDArray[np.int64]], begin_ns: int, end_ns: int
    ) -> None:
        gone = np.where(workers["state"] == GONE, workers["since_ns"], end_ns)
        came = np.clip(np.array(asked_ns, np.int64), begin_ns, end_ns)
        left = np.clip(gone, begin_ns, end_ns)
        self.worker_ns = float((left - came).sum())
        # At one moment those that go are counted before those that come.
        inside = left > came
        moments = np.concatenate([left[inside], came[inside]])
        changes = np.concatenate([np.full(inside.sum(), -1), np.full(inside.sum(), 1)])
        order = np.argsort(moments, kind="stable")
        self.most = int(np.cumsum(changes[order]).max(initial=0))


def _check(scenario: Scenario) -> None:
    duration_s = scenario.workload.duration_s
    if not duration_s > 0:
        raise ConfigError("a simulation needs a workload of some duration, above 0 s")
    if not 0 <= scenario.warmup_s < duration_s:
        raise ConfigError(
            f"the warm-up must end before the workload does: {scenario.warmup_s:g} s of {duration_s:g} s leaves nothing"
        )
    if scenario.workers < 1:
        raise ConfigError(f"a simulation needs at least one worker, not {scenario.workers}")
    if not scenario.interval_s >= 1e-9 or not scenario.allocate.period_s >= 1e-9:
        raise ConfigError("the interval of the timeline and the period of the allocation must be above 0 s")
    for fault in scenario.faults:
        if not 0 <= fault.at_s < duration_s:
            raise ConfigError(f"a fault at {fault.at_s:g} s is not within the workload's {duration_s:g} s")
        if fault.worker < 0 or (scenario.scale.kind == "none" and fault.worker >= scenario.workers):
            raise ConfigError(
                f"a fault is of worker {fault.worker}, but workers are numbered 0 to {scenario.workers - 1}"
            )


def _rows(scenario: Scenario, ladder: Ladder, engine: _core.Simulation) -> Rows:
    if scenario.served is None:
        return _Plain(engine, ladder.max_length)
    try:
        return scenario.served.begin(engine, scenario)
    except ValueError as error:  # of the core, as in _engine
        raise ConfigError(f"scenario {scenario.name}: {error}") from None


def _engine(scenario: Scenario, ladder: Ladder) -> _core.Simulation:
    dispatch, served = scenario.dispatch, scenario.served
    try:
        engine = _core.Simulation(
            dispatch.policy,
            slo=_ms_in_ns(scenario.slo_ms),
            lambda_=dispatch.lambda_,
            alpha=dispatch.alpha,
            max_peek=dispatch.max_peek,
            max_queued=dispatch.max_queued,
            batching="one" if dispatch.batching == "worker" else dispatch.batching,
            timeout=None if scenario.timeout_ms is None else _ms_in_ns(scenario.timeout_ms),
            overhead=_ms_in_ns(scenario.overhead_ms),
            hop_out=_ms_in_ns(scenario.hop_out_ms),
            hop_back=_ms_in_ns(scenario.hop_back_ms),
            retries=scenario.retries,
            bulk_share=scenario.bulk_share,
            seed=scenario.seed,
            warmup=in_ns(scenario.warmup_s),
            record=scenario.record or served is not None,
            noise=lognormal_quantiles(scenario.noise_cv) if scenario.noise_cv else None,
        )
        # A batch is sent ahead to hide the way to the worker; without one, rows that come meanwhile would miss it.
        hops = scenario.hop_out_ms + scenario.hop_back_ms > 0
        ahead = 0 if dispatch.batching == "worker" else dispatch.inflight_limit if hops else 1
        ahead = served.ahead if served is not None and ahead == 1 and served.ahead else ahead
        of_runtimes = scenario.of_runtimes()
        for (variant, _), model, capacity in zip(of_runtimes, scenario.runtimes, ladder.capacities, strict=True):
            limit = model.inflight_limit
            engine.add_runtime(
                model.max_length,
                capacity,
                _points_ns(model.points),
                max_batch=model.max_batch,
                dynamic=model.dynamic,
                inflight_limit=limit if limit is not None else ahead or model.rows_in_flight(dispatch.inflight_limit),
                truth=None if model.truth is None else _points_ns(model.truth),
                variant=variant,
            )
        for variant, shared in enumerate(scenario.models):
            timeout = None if shared.timeout_ms is None else _ms_in_ns(shared.timeout_ms)
            engine.set_variant(variant, slo=_ms_in_ns(shared.slo_ms), timeout=timeout, share=shared.share)
        for members in ladder.bundles.values():
            engine.add_bundle(list(members), inflight_limit=ahead or dispatch.inflight_limit)
    except ValueError as error:  # of the core, names the field and its range
        raise ConfigError(f"scenario {scenario.name}: {error}") from None
    return engine


def _points_ns(points: Sequence[tuple[int, int, float]]) -> list[tuple[int, int, int]]:
    return [(length, batch, _ms_in_ns(ms)) for length, batch, ms in points]


def _ms_in_ns(ms: float) -> int:
    return round(ms * 1_000_000)
