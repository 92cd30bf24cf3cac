"""What the simulator refuses: each message names the field, and a refused call changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arlo import _core

FAR = 2**61
GOOD: dict[str, Any] = {"slo": 10}
POINTS = [(64, 1, 10)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "best"),
        ("slo", 0),
        ("slo", -1),
        ("slo", FAR),
        ("lambda_", 0.0),
        ("lambda_", float("nan")),
        ("alpha", 1.5),
        ("alpha", 0.0),
        ("max_peek", 0),
        ("max_queued", -1),
        ("timeout", 0),
        ("timeout", FAR),
        ("overhead", -1),
        ("overhead", FAR),
        ("hop_out", -1),
        ("hop_back", -1),
        ("retries", -1),
        ("warmup", -1),
        ("noise", np.array([1.0, 0.0])),
        ("noise", np.array([1.0, np.inf])),
        ("noise", np.array([-0.5])),
        ("noise", np.array([np.nan])),
        ("noise", np.array([1e7])),
        ("noise", np.ones(2**20 + 1)),
    ],
    ids=str,
)
def test_options(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field.rstrip('_')}\b"):
        _core.Simulation(**{**GOOD, field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_length", 0),
        ("max_length", 2**20 + 1),
        ("capacity", 0),
        ("latency", []),
        ("latency", [(0, 1, 10)]),
        ("latency", [(64, 1, -1)]),
        ("latency", [(64, 1, 10), (64, 1, 12)]),
        ("max_batch", 0),
        ("max_batch", -3),
        ("inflight_limit", 0),
        ("truth", [(64, 0, 10)]),
    ],
    ids=str,
)
def test_runtimes(field: str, value: Any) -> None:
    sim = _core.Simulation(**GOOD)
    arguments = {"max_length": 64, "capacity": 1, "latency": POINTS, field: value}
    name = "latency" if field == "truth" else field
    with pytest.raises(ValueError, match=rf"^{name}\b"):
        sim.add_runtime(**arguments)
    assert len(sim.runtimes()["served"]) == 0
    assert sim.add_runtime(64, 1, POINTS) == 0


def test_uniform_takes_one_length() -> None:
    sim = _core.Simulation("uniform", slo=10)
    sim.add_runtime(64, 1, POINTS)
    with pytest.raises(ValueError, match=r"^max_length: 65"):
        sim.add_runtime(65, 1, [(65, 1, 10)])
    assert len(sim.runtimes()["served"]) == 1


def busy() -> _core.Simulation:
    """At 20 ns; worker 0 serves, worker 1 is gone."""
    sim = _core.Simulation(slo=10)
    sim.add_runtime(64, 1, POINTS)
    sim.add_worker(0, 0)
    sim.add_worker(0, 0)
    sim.remove(1)
    sim.advance(20)
    return sim


@pytest.mark.parametrize(
    ("call", "arguments", "field"),
    [
        ("add_worker", (1, 30), "runtime"),
        ("add_worker", (0, 19), "at"),
        ("add_worker", (0, FAR), "at"),
        ("replace", (0, 1, 5), "runtime"),
        ("replace", (0, 0, -1), "delay"),
        ("replace", (1, 0, 5), "worker"),
        ("replace", (2, 0, 5), "worker"),
        ("remove", (1,), "worker"),
        ("remove", (7,), "worker"),
        ("fail", (1,), "worker"),
        ("fail", (0, -1), "restart"),
        ("fail", (0, FAR), "restart"),
        ("slow", (0, 0.0), "factor"),
        ("slow", (0, float("nan")), "factor"),
        ("slow", (0, 1e7), "factor"),
        ("slow", (1, 2.0), "worker"),
        ("advance", (19,), "until"),
        ("advance", (FAR,), "until"),
        ("feed", (np.array([19]), np.ones(1, np.int32)), "arrived"),
        ("feed", (np.array([-5]), np.ones(1, np.int32)), "arrived"),
        ("feed", (np.array([30, 29]), np.ones(2, np.int32)), "arrived"),
        ("feed", (np.array([FAR]), np.ones(1, np.int32)), "arrived"),
        ("feed", (np.array([30, 31]), np.ones(1, np.int32)), "arrived and length"),
    ],
    ids=str,
)
def test_calls(call: str, arguments: tuple[Any, ...], field: str) -> None:
    sim = busy()
    before = {name: column.tolist() for name, column in sim.workers().items()}
    with pytest.raises(ValueError, match=rf"^{field}\b"):
        getattr(sim, call)(*arguments)
    assert {name: column.tolist() for name, column in sim.workers().items()} == before
    assert sim.now == 20
    sim.finish()
    assert sim.totals()["arrived"] == 0, "nothing of it was fed"


def test_what_was_fed_is_not_overtaken() -> None:
    sim = busy()
    sim.feed(np.array([40]), np.ones(1, np.int32))
    with pytest.raises(ValueError, match=r"^arrived\b"):
        sim.feed(np.array([39]), np.ones(1, np.int32))
    sim.feed(np.array([40]), np.ones(1, np.int32))
    sim.finish()
    assert sim.totals()["arrived"] == 2


@pytest.mark.parametrize(
    "arrays",
    [
        (np.array([30.0]), np.ones(1, np.int32)),
        (np.array([30], np.int32), np.ones(1, np.int32)),
        (np.array([30]), np.ones(1, np.int64)),
        (np.array([[30]]), np.ones((1, 1), np.int32)),
        (np.array([30, 0, 40, 0])[::2], np.ones(2, np.int32)),
    ],
    ids=["float", "int32 times", "int64 lengths", "two dimensions", "not contiguous"],
)
def test_arrays_of_another_kind(arrays: tuple[Any, Any]) -> None:
    """Never silently misread: refused, or converted to the same values."""
    sim = _core.Simulation(slo=1000, record=True)
    sim.add_runtime(64, 1, POINTS)
    sim.add_worker(0, 0)
    try:
        sim.feed(*arrays)
    except TypeError:
        return
    sim.finish()
    assert sim.columns()["arrived_ns"].tolist() == arrays[0].tolist()


def test_lengths_that_no_runtime_takes_are_rejected() -> None:
    sim = _core.Simulation(slo=10, record=True)
    sim.add_runtime(64, 1, POINTS)
    sim.add_worker(0, 0)
    lengths = np.array([0, -1, -(2**31), 65, 2**31 - 1, 64], np.int32)
    sim.feed(np.arange(6) * 20, lengths)
    sim.finish()
    assert sim.columns()["outcome"].tolist() == [2] * 5 + [0]
    by_length = sim.arrivals_by_length()
    assert by_length.sum() == 6
    assert (by_length[0], by_length[64], by_length[65], by_length[-1]) == (3, 1, 1, 1)
