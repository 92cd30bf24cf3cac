"""The small rules of the reconciler: when two engines are tried, who is counted on, who is restarted."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

import pytest

from arlo.control.mode import mode_of
from arlo.control.reconcile import fleet as fleet_module
from arlo.control.reconcile import overlap, probation
from arlo.control.reconcile.deployments import Deployments
from arlo.control.reconcile.fleet import Fleet
from arlo.control.reconcile.overlap import Overlap, is_out_of_memory
from arlo.control.reconcile.probation import Probation
from arlo.control.reconcile.restarts import AGAIN_S, LOAD_FAILURES, LOAD_FAILURES_ALONE, Restarts
from tests.fakes import virtual_time
from tests.fakes.memory_cluster import MemoryPool, World
from tests.fakes.placements import MANIFEST, configured


@pytest.mark.parametrize(
    "error",
    [
        "out of memory: 600 MB wanted, 400 of 1000 MB are free",  # the emulated engine
        "CUDA error: out of memory",
        "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 79.15 GiB total capacity)",
        "[E] [TRT] 2: [virtualMemoryBuffer.cpp::resizePhysical] Error Code 2: OutOfMemory (no further information)",
        "CUDA failure 2: out of memory ; GPU=0 ; hostname=a",
        "cudaErrorMemoryAllocation",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "/bfc_arena.cc:368 Failed to allocate memory for requested buffer of size 38597376",
        "BFCArena::AllocateRawInternal Available memory of 30670848 is smaller than requested bytes of 33554432",
        "std::bad_alloc",
        "[Errno 12] Cannot allocate memory",
        "Insufficient device memory",
    ],
)
def test_memory_is_short(error: str) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        "output embedding is not in CPU memory",
        "unable to find the memory-mapped file model.onnx.data",
        "Failed to open the shared memory region '/arlo_12_w0'",
        "an illegal memory access was encountered",
        "unexpected memory layout of input input_ids",
        "memory pattern optimization is disabled",
        "instance group allocates no device",
        "the GPU's memory clock is throttled",
    ],
)
def test_the_word_memory_is_not_enough(error: str) -> None:
    assert not is_out_of_memory(error)


def test_two_engines_are_tried_again_later_each_time() -> None:
    tried = Overlap(wanted=True)
    assert tried.allowed(0.0)
    now_s, pauses = 0.0, []
    for _ in range(6):
        pause_s = tried.no_room(now_s)
        pauses.append(pause_s)
        assert not tried.allowed(now_s + pause_s - 1)
        now_s += pause_s
        assert tried.allowed(now_s)
    assert pauses == [600, 1200, 2400, 4800, 7200, 7200]
    tried.worked()
    assert tried.no_room(now_s) == overlap.AGAIN_S[0]
    assert not Overlap(wanted=False).allowed(1e9)


def test_a_worker_that_is_lost_again_and_again_must_stay_for_longer_and_longer() -> None:
    rule = Probation()
    now_s, stays = 0.0, []
    for _ in range(8):
        rule.lost("w0")
        rule.lost("w0")  # told again while it is away
        assert not rule.left_out("w0", now_s)  # it is away, which is another matter
        rule.back("w0", now_s)
        stay_s = rule.must_stay_s("w0")
        stays.append(stay_s)
        assert rule.left_out("w0", now_s + stay_s - 1) == (stay_s > 0)
        now_s += stay_s
        rule.back("w0", now_s)
        assert not rule.left_out("w0", now_s)
    assert stays == [0, 60, 120, 240, 480, 960, 1800, 1800]
    rule.back("w0", now_s + probation.FORGET_S)
    rule.lost("w0")
    assert rule.must_stay_s("w0") == 0


@pytest.mark.parametrize("others", [0, 2])
def test_a_worker_that_crashes_every_half_minute_moves_the_allocation_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Each change of usable() is a plan that moves workers, whatever it gains."""
    monkeypatch.setattr(fleet_module, "monotonic_s", virtual_time.now_s)

    async def scenario() -> list[bool]:
        world = World(random.Random(0), workers=1 + others, longest="m_512", engines=1, moves=False)
        deployments = Deployments(mode_of(configured("allocation = {512 = 1}"), MANIFEST), Counter())
        fleet = Fleet(MemoryPool(world), deployments, Counter(), runtimes=["m_512"])
        seen: list[bool] = []
        for second in range(3600):
            away = second % 40 >= 30  # ten seconds until it is back
            world.change("w0", state="failed" if away else "ready")
            await fleet.observe()
            seen.append(fleet.usable("w0", grace_s=5.0))
            await asyncio.sleep(1.0)
        world.change("w0", state="ready")
        for _ in range(int(probation.LONGEST_S) + 1):
            await fleet.observe()
            await asyncio.sleep(1.0)
        assert fleet.usable("w0", grace_s=5.0)
        return seen

    seen = virtual_time.run(scenario())
    changes = sum(before != after for before, after in itertools.pairwise(seen))
    if others:
        assert changes <= 3
        assert not any(seen[200:])
    else:  # there is nobody else to count on
        assert changes > 100


def test_who_cannot_load_is_restarted() -> None:
    rule = Restarts()
    for _ in range(LOAD_FAILURES):
        assert not rule.cannot_load("w0", elsewhere={"a"}, serves=True)
        rule.load_failed("w0", "a")
    assert rule.cannot_load("w0", elsewhere={"a", "b"}, serves=True)
    assert not rule.cannot_load("w0", elsewhere={"b"}, serves=True)  # the runtime may be the reason
    rule.load_failed("w0", "c")
    assert not rule.cannot_load("w0", elsewhere=set(), serves=True)
    assert rule.cannot_load("w0", elsewhere=set(), serves=False)  # neither: it is the worker
    rule.loaded("w0", "c")
    assert not rule.cannot_load("w0", elsewhere={"a", "c"}, serves=False)


def test_a_runtime_that_loads_nowhere_costs_one_restart() -> None:
    rule = Restarts()
    for _ in range(2):
        for _ in range(LOAD_FAILURES_ALONE):
            rule.load_failed("w0", "a")
        if rule.cannot_load("w0", elsewhere=set(), serves=True):
            assert rule.ask_unfit("w0", 0.0)
    assert rule.pending == {"w0"}
    assert not rule.cannot_load("w0", elsewhere=set(), serves=True)


def test_restarts_of_one_worker_come_later_each_time() -> None:
    rule = Restarts()
    now_s = 0.0
    for pause_s in (120, 240, 480, 960, 1920, 3600, 3600):
        assert rule.ask_unfit("w0", now_s)
        assert rule.unfit("w0")
        rule.done("w0")
        assert not rule.unfit("w0")
        assert not rule.ask_unfit("w0", now_s + pause_s - 1)
        now_s += pause_s
    assert AGAIN_S == (120, 3600)
    rule.ask("w1")
    assert rule.pending == {"w1"}
    assert not rule.unfit("w1")
