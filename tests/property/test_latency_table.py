"""A latency table is read alike by all that read one, to the nanosecond, and M is one number."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from arlo import _core
from arlo import config as configuration
from arlo.catalog.latency import LatencyTable, ms_in_ns
from arlo.catalog.manifest import LatencyPoint, Manifest, Runtime
from arlo.control.mode import mode_of
from arlo.control.reconcile.placement import deployment_message
from arlo.planning.allocation.curves import capacity, curve
from arlo.planning.allocation.problem import LatencyCurve
from arlo.simulator.profiles import capacity as simulated_capacity
from arlo.simulator.profiles import latency_ms
from arlo.simulator.run import run
from arlo.simulator.scenario.scenario import Dispatch, RuntimeModel
from tests.fakes.simulated import SECOND, Listed, scenario

US = st.integers(1, 50_000)


@st.composite
def runtimes(draw: st.DrawFn) -> Runtime:
    """Any table, batches measured at other lengths each; a larger batch may be quicker."""
    longest = draw(st.integers(1, 512))
    places = draw(st.sets(st.tuples(st.integers(1, 512), st.integers(1, 40)), min_size=1, max_size=8))
    return Runtime(
        name="r",
        max_length=longest,
        max_batch=draw(st.integers(1, 32)),
        dynamic=draw(st.booleans()),
        engine="emulated",
        precision="fp32",
        device="",
        latency=tuple(LatencyPoint(length=at, batch=rows, latency_us=draw(US)) for at, rows in places),
    )


def simulated(runtime: Runtime) -> RuntimeModel:
    return RuntimeModel(
        name="r",
        max_length=runtime.max_length,
        max_batch=runtime.max_batch,
        dynamic=runtime.dynamic,
        points=tuple((p.length, p.batch, p.latency_us / 1000) for p in runtime.latency),
    )


@given(runtime=runtimes(), data=st.data())
def test_every_reader_finds_the_same_latency(runtime: Runtime, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, runtime.max_length))
    rows = data.draw(st.integers(1, runtime.max_batch))
    found = runtime.latency_ns(rows, length)
    scheduler = _core.Scheduler()
    points = [(p.length, p.batch, round(p.latency_us * 1000)) for p in runtime.latency]
    number = scheduler.add_runtime(runtime.max_length, 1, points, max_batch=runtime.max_batch, dynamic=runtime.dynamic)
    assert scheduler.cost(number, length, rows) == found
    assert simulated(runtime).table == LatencyTable(tuple(points))
    at = length if runtime.dynamic else runtime.max_length
    assert ms_in_ns(latency_ms(simulated(runtime).points, at, rows)) == found


@given(runtime=runtimes(), data=st.data())
def test_the_planner_reads_it_so_too_where_latency_rises_with_the_batch(runtime: Runtime, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, runtime.max_length))
    planned = curve(runtime, length)
    read = [runtime.latency_ns(rows, length) for rows, _ in planned.points]
    if read == sorted(read):
        assert [ms_in_ns(ms) for _, ms in planned.points] == read
    values = [ms for _, ms in planned.points]
    assert values == sorted(values)


@given(runtime=runtimes(), slo_ms=st.floats(0.01, 5_000))
def test_one_m_and_one_limit_for_all(runtime: Runtime, slo_ms: float) -> None:
    m = capacity(runtime, slo_ms)
    assert simulated_capacity(simulated(runtime), slo_ms) == max(1, m)
    assert simulated(runtime).rows_in_flight(2) == runtime.rows_in_flight(2) == 2 * runtime.max_batch


@given(latency_us=st.integers(1, 10**6), times=st.integers(1, 10**3), below_ns=st.integers(0, 999))
def test_a_whole_multiple_of_the_latency_counts_the_last_request(latency_us: int, times: int, below_ns: int) -> None:
    slo_ms = (latency_us * times * 1000 - below_ns) / 1e6
    assert LatencyCurve.single(latency_us / 1000).capacity(slo_ms) == times - (below_ns > 0)


def test_the_cases_that_were_counted_in_different_ways() -> None:
    assert LatencyCurve.single(1.78).capacity(160.2) == 90
    batched = Runtime(
        name="m_64", max_length=64, max_batch=8, dynamic=False, engine="emulated", precision="fp32", device="",
        latency=tuple(LatencyPoint(length=64, batch=rows, latency_us=us) for rows, us in ((1, 10_000), (8, 20_000))),
    )  # fmt: skip
    assert capacity(batched, 150) == simulated_capacity(simulated(batched), 150) == 57
    text = '[model]\nrepository = "r"\nslo_ms = 150\n[workers]\ncount = 1\n[deployment]\nallocation = {64 = 1}'
    config = configuration.parse(text, base=Path())
    manifest = Manifest(
        model="m", task="emulated", source="", tokenizer=None, inputs=(), outputs=(), runtimes=(batched,)
    )
    message = deployment_message(mode_of(config, manifest), [("w0", "m_64")], {"w0": "h:1"})
    assert [runtime.capacity for runtime in message.runtimes] == [57]
    assert [instance.inflight_limit for instance in message.instances] == [2], "a batch that runs, and the next one"
    config = configuration.parse(f'{text}\n[dispatch]\nbatching = "worker"', base=Path())
    message = deployment_message(mode_of(config, manifest), [("w0", "m_64")], {"w0": "h:1"})
    assert [instance.inflight_limit for instance in message.instances] == [16], "the same, in rows"


def test_a_batching_runtime_served_by_default_fills_its_batches() -> None:
    """In the simulation as at the gateway, whose limit is the same."""
    batching = RuntimeModel(name="b", max_length=64, points=((64, 1, 10.0), (64, 8, 20.0)), max_batch=8)
    work = Listed(tuple(range(0, SECOND, SECOND // 390)), (60,) * 391, duration_s=1.0)
    result = run(scenario(work, runtimes=(batching,), workers=1, dispatch=Dispatch(policy="late")))
    (row,) = result.runtimes
    assert row["served"] / row["batches"] > 6
