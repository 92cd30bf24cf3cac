"""Workers among the stages of a cascade, and instances on devices."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from arlo.errors import ConfigError
from arlo.planning import packing
from arlo.planning.packing import Device, Instance, PackingProblem, pack, transfers
from arlo.planning.stages import divide, proportional


def test_the_proportional_rule() -> None:
    assert proportional((1, 0.404, 0.353, 0.171), (3, 6, 10, 24), 16) == (4, 3, 4, 5)
    assert proportional((1, 0.001), (1, 1), 5) == (4, 1)
    assert proportional((1, 0.5), (1, 2), 6, span=(1, 2)) == (4, 1)  # one device is left, and one is too few for two
    with pytest.raises(ConfigError, match="too few"):
        proportional((1, 1), (1, 1), 1)


def test_division_is_brute_force() -> None:
    rng = random.Random(3)
    for _ in range(60):
        stages, workers = rng.randint(1, 4), rng.randint(4, 12)
        least = [rng.randint(0, 1) for _ in range(stages)]
        tables = [[rng.choice([rng.random(), math.inf]) for _ in range(workers + 1)] for _ in range(stages)]
        found = divide([table.__getitem__ for table in tables], workers, least)
        options = itertools.product(*(range(n, workers + 1) for n in least))
        best = min(
            sum(table[n] for table, n in zip(tables, each, strict=True)) for each in options if sum(each) == workers
        )
        assert found.objective == pytest.approx(best)
        assert sum(found.workers) == workers
        assert all(n >= low for n, low in zip(found.workers, least, strict=True))


def test_division_of_queues() -> None:
    """Each stage an M/M/n-like curve: more work, more workers."""

    def curve(work: float) -> object:
        return lambda n: work / (n - work) if n > work else math.inf

    found = divide([curve(2.0), curve(5.5)], 12)  # type: ignore[list-item]
    assert found.workers == (4, 8)
    assert divide([curve(2.0), curve(5.5)], 7).objective == math.inf  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="too few"):
        divide([curve(1.0), curve(1.0)], 1)  # type: ignore[list-item]


def three() -> PackingProblem:
    return PackingProblem(
        instances=(Instance(0, 4, 0.5), Instance(1, 6, 0.3), Instance(2, 9, 0.6)),
        devices=(Device(10), Device(10)),
        transfer=((0, 1), (1, 0)),
        cap=1.0,
    )


def test_packing_by_hand() -> None:
    pytest.importorskip("highspy")
    found = pack(three())
    assert found is not None
    first, second, third = found.device
    assert first == second != third
    assert found.transfer == 4


def test_packing_is_brute_force() -> None:
    pytest.importorskip("highspy")
    rng = random.Random(5)
    fits = 0
    for _ in range(15):
        count, devices = rng.randint(2, 5), tuple(Device(rng.randint(8, 16), host=g // 2) for g in range(3))
        instances = tuple(Instance(rng.randrange(3), rng.randint(2, 7), rng.choice([0.2, 0.4])) for _ in range(count))
        flow = tuple(tuple(float(b == a + 1) * rng.random() for b in range(3)) for a in range(3))
        problem = PackingProblem(
            instances=instances,
            devices=devices,
            transfer=transfers(devices, near=1.0, far=12.0),
            flow=rng.choice([None, flow]),
        )
        good = [p for p in itertools.product(range(3), repeat=count) if problem.holds(p)]
        found = pack(problem)
        assert (found is None) == (not good)
        assert packing.fits(problem) == bool(good)
        if found is not None:
            fits += 1
            assert problem.holds(found.device)
            assert found.transfer == pytest.approx(min(map(problem.value, good)), abs=1e-6)
    assert fits >= 5


def test_transfers() -> None:
    devices = (Device(1, 0), Device(1, 0), Device(1, 1))
    assert transfers(devices, near=1, far=10) == ((0, 1, 10), (1, 0, 10), (10, 10, 0))
