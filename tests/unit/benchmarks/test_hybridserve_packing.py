"""Instances on devices (HybridServe section V)."""

from __future__ import annotations

import itertools
import random

import pytest

from benchmarks.papers.hybridserve import packing
from benchmarks.papers.hybridserve.packing import Device, Instance, PackingProblem, pack, transfers


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
