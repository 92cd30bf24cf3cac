"""Batch, replicas and devices of every stage (HybridServe, Algorithm 3)."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from arlo.errors import ConfigError
from benchmarks.papers.hybridserve.packing import Device, transfers
from benchmarks.papers.hybridserve.replicas import Line, StageNeeds, fitted, plan


def test_lines() -> None:
    assert fitted([(1, 3), (2, 5), (4, 9)]) == Line(1, 2)
    assert fitted([(4, 7)]) == Line(7)
    assert fitted([(1, 5), (2, 3)]) == Line(4)  # never falls
    assert fitted([(1, 1), (2, 4), (3, 9)]) == Line(0, 36 / 14)  # never below 0
    with pytest.raises(ConfigError, match="at least one"):
        fitted([])


def test_time_of_what_gets_there() -> None:
    stage = StageNeeds(reach=0.25, ms=Line(6, 2), memory_mb=Line(1), max_batch=4)
    assert stage.batch_ms(2) == 0.5 * 8  # a row, every other time
    assert stage.batch_ms(8) == 6 + 2 * 2
    assert stage.batch_ms(32) == 2 * (6 + 2 * 4)  # two batches of four


def test_replicas_and_places() -> None:
    pytest.importorskip("highspy")
    stages = (
        StageNeeds(reach=1, ms=Line(2), memory_mb=Line(3)),
        StageNeeds(reach=0.5, ms=Line(8), memory_mb=Line(9)),
    )
    devices = tuple(Device(12) for _ in range(3))
    made = plan(stages, devices, rate=0.25, transfer=transfers(devices, near=1, far=1), most=3)
    assert made is not None
    assert made.replicas[1] >= 2  # one of them carries 0.25 rows per ms, and not at 90 %
    assert made.rate * 0.9 >= 0.25
    assert plan(stages, devices, rate=2.0, transfer=transfers(devices, near=1, far=1), most=3) is None
    with pytest.raises(ConfigError, match="above 0"):
        plan(stages, devices, rate=0, transfer=())


def test_batches_carry_more_as_far_as_time_and_memory_go() -> None:
    pytest.importorskip("highspy")
    stage = StageNeeds(reach=1, ms=Line(4, 1), memory_mb=Line(2, 1), max_batch=8)
    devices = (Device(10),)

    def best(slo_ms: float = math.inf, memory_mb: float = 10) -> int | None:
        room = (Device(memory_mb),)
        found = plan(
            [stage],
            room,
            rate=0.1,
            transfer=transfers(room, near=1, far=1),
            batches=(1, 2, 4, 8),
            most=1,
            slo_ms=slo_ms,
        )
        return None if found is None else found.batch

    assert best() == 8
    assert best(memory_mb=9) == 4
    assert best(slo_ms=40) == 4  # 3 more rows come within 30 ms, and four take 8
    assert best(slo_ms=37.9) == 2
    assert best(slo_ms=4) is None
    one = plan([stage], devices, rate=0.1, transfer=transfers(devices, near=1, far=1), batches=(8,), most=1)
    assert one is not None
    assert one.rate == pytest.approx(8 / 12)
    assert one.carries == pytest.approx(0.9 * 8 / 12)
    two = plan([stage], (Device(99),), rate=0.1, transfer=((0.0,),), batches=(8,), most=2)
    assert two is not None
    assert two.rate == pytest.approx(2 * 8 / 12)
    assert two.carries == pytest.approx(0.9 * 8 / 12), "two on one device carry what it carries"
    assert one.ms == pytest.approx(70 + 12)


def test_a_stage_over_two_devices() -> None:
    pytest.importorskip("highspy")
    devices = (Device(10), Device(10), Device(10, host=1))
    transfer = transfers(devices, near=1, far=10)
    stages = (
        StageNeeds(reach=1, ms=Line(1), memory_mb=Line(4)),
        StageNeeds(reach=0.5, ms=Line(8), memory_mb=Line(12), hidden=Line(0, 3)),
    )
    assert plan(stages, devices, rate=0.1, transfer=transfer, most=1) is None
    made = plan(stages, devices, rate=0.1, transfer=transfer, most=1, most_span=2)
    assert made is not None
    assert made.spans[1] == 2
    assert made.rate == pytest.approx(2 / 4)  # both parts work at a time
    at = {(part.stage, part.part): device for part, device in zip(made.parts, made.packing.device, strict=True)}
    assert {at[1, 0], at[1, 1]} == {0, 1}  # hidden states stay within the host
    assert at[0, made.spans[0] - 1] == at[1, 0]  # and the small stage is beside the part that it talks to
    assert made.packing.transfer == pytest.approx(0.5 * 3)


def test_it_is_brute_force() -> None:
    pytest.importorskip("highspy")
    rng = random.Random(11)
    fits = 0
    for case in range(12):
        devices = tuple(Device(rng.randint(8, 14)) for _ in range(2))
        stages = [
            StageNeeds(
                reach=reach,
                ms=Line(rng.uniform(0.5, 4), rng.uniform(0, 2)),
                memory_mb=Line(rng.randint(2, 6), rng.uniform(0, 0.6)),
                max_batch=4,
            )
            for reach in (1.0, rng.uniform(0.1, 0.7))
        ]
        rate, slo_ms, batches = rng.uniform(0.05, 0.5), rng.choice([math.inf, 40.0]), (1, 2, 4)
        best = None
        for b, r0, r1 in itertools.product(batches, (1, 2), (1, 2)):
            replicas = (r0, r1)
            carried = min(r * b / s.batch_ms(b) for r, s in zip(replicas, stages, strict=True))
            ms = (b - 1) / rate + sum(s.ms.at(s.rows(b)) for s in stages)
            if carried * 0.9 < rate or ms > slo_ms:
                continue
            of = [0] * r0 + [1] * r1
            for place in itertools.product(range(2), repeat=len(of)):
                good = all(
                    sum(stages[s].memory_mb.at(stages[s].rows(b)) for s, d in zip(of, place, strict=True) if d == g)
                    <= devices[g].memory_mb
                    and sum(
                        rate * stages[s].batch_ms(b) / (b * replicas[s])
                        for s, d in zip(of, place, strict=True)
                        if d == g
                    )
                    <= 0.9
                    for g in range(2)
                )
                apart = sum(place[i] != place[r0 + j] for i in range(r0) for j in range(r1))
                if good:
                    value = (-carried, stages[1].reach * apart / (r0 * r1))
                    best = value if best is None else min(best, value)
        found = plan(
            stages,
            devices,
            rate=rate,
            transfer=transfers(devices, near=1, far=1),
            batches=batches,
            most=2,
            slo_ms=slo_ms,
        )
        assert (found is None) == (best is None), case
        if found is not None and best is not None:
            fits += 1
            assert found.rate == pytest.approx(-best[0])
            assert found.packing.transfer == pytest.approx(best[1], abs=1e-6)
    assert fits >= 4
