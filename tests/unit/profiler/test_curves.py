"""arlo.planning.allocation.curves: latency curves for planning from measured points of any quality."""

from __future__ import annotations

import pytest

from arlo.catalog.manifest import LatencyPoint, Manifest, Runtime
from arlo.errors import ConfigError
from arlo.planning.allocation.curves import curve, curves, max_lengths, static_runtimes
from arlo.planning.allocation.problem import AllocationProblem


def runtime(
    *points: tuple[int, int, int], max_length: int = 64, max_batch: int = 1, dynamic: bool = False, name: str = ""
) -> Runtime:
    """Points are (length, batch, microseconds)."""
    return Runtime(
        name=name or f"m_len{max_length}",
        max_length=max_length,
        max_batch=max_batch,
        dynamic=dynamic,
        engine="emulated",
        precision="fp32",
        device="test",
        latency=tuple(LatencyPoint(length=length, batch=batch, latency_us=us) for length, batch, us in points),
    )


def manifest(*runtimes: Runtime) -> Manifest:
    return Manifest(model="m", task="emulated", source="test", tokenizer=None, inputs=(), outputs=(), runtimes=runtimes)


@pytest.mark.parametrize(
    ("measured", "max_batch", "expected"),
    [
        (((64, 4, 3000), (64, 1, 1000), (64, 2, 1500)), 4, [(1, 1.0), (2, 1.5), (4, 3.0)]),
        (
            ((64, 2, 1500), (64, 4, 3000)),
            8,
            [(1, 1.5), (2, 1.5), (4, 3.0), (8, 6.0)],
        ),  # flat, then in proportion
        (((64, 1, 1000), (64, 4, 4000)), 2, [(1, 1.0), (2, 2.0)]),
        (((64, 2, 1000), (64, 4, 4000)), 1, [(1, 1.0)]),
        (((64, 1, 1000), (64, 1, 3000)), 1, [(1, 2.0)]),  # averaged
        (((64, 1, 0),), 1, [(1, 0.001)]),  # of an emulated runtime
        # A quicker larger batch is pooled with the smaller ones, as far back as it must.
        (((64, 1, 1000), (64, 2, 3000), (64, 4, 2000), (64, 8, 2200)), 8, [(1, 1.0), (2, 2.4), (4, 2.4), (8, 2.4)]),
        (((64, 1, 3000), (64, 2, 2000), (64, 4, 1000)), 4, [(1, 2.0), (2, 2.0), (4, 2.0)]),
    ],
)
def test_points(measured: tuple[tuple[int, int, int], ...], max_batch: int, expected: list[tuple[int, float]]) -> None:
    found = curve(runtime(*measured, max_batch=max_batch)).points
    assert [rows for rows, _ in found] == [rows for rows, _ in expected]
    assert [ms for _, ms in found] == pytest.approx([ms for _, ms in expected])
    assert curve(runtime(*measured, max_batch=max_batch), 3).points == found, "static: the same at every length"


def test_dynamic_is_read_at_a_length() -> None:
    dynamic = runtime(
        (64, 1, 1000), (256, 1, 4000), (64, 4, 2000), (256, 4, 8000), max_length=256, max_batch=4, dynamic=True
    )
    assert curve(dynamic).points == ((1, 4.0), (4, 8.0))
    assert curve(dynamic, 160).points == ((1, 2.5), (4, 5.0))
    assert curve(dynamic, 8).points == curve(dynamic, 64).points == ((1, 1.0), (4, 2.0))
    assert curve(dynamic, 10_000).points == curve(dynamic).points


def test_no_points_and_bad_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="m_len64 has no latency profile: measure it with `arlo compile profile`"):
        curve(runtime())
    with pytest.raises(ConfigError, match="at least 1 token"):
        curve(runtime((64, 1, 1), dynamic=True), 0)


def test_static_runtimes_ascend_and_leave_dynamic_out() -> None:
    short, long = runtime((64, 1, 1000)), runtime((256, 1, 3000), max_length=256)
    dynamic = runtime((256, 1, 4000), max_length=256, dynamic=True, name="m_dyn")
    found = static_runtimes(manifest(long, dynamic, short).runtimes)
    assert found == [short, long]
    problem = AllocationProblem(4, 50.0, max_lengths(found), curves(found), (10.0, 3.0))
    assert problem.max_lengths == (64, 256)
    assert problem.capacities == (50, 16)


def test_of_two_runtimes_of_one_length_the_one_with_more_throughput() -> None:
    slow = runtime((64, 1, 1000), name="a")
    fast = runtime((64, 1, 1200), (64, 4, 2000), max_batch=4, name="b")
    assert static_runtimes(manifest(slow, fast).runtimes) == static_runtimes(manifest(fast, slow).runtimes) == [fast]


def test_no_static_runtime() -> None:
    assert static_runtimes(manifest(runtime((64, 1, 1), dynamic=True)).runtimes) == []
