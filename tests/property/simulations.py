"""Random programs for the simulator: a cluster, arrivals, and what a caller does to the workers meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from arlo import _core
from tests.property.plain_simulation import Runtime, Settings

POLICIES = ["rs", "ilb", "ig", "infaas", "uniform", "eft", "late"]
NOISE = ((), (0.5, 1.0, 1.5), (0.81, 0.93, 1.0, 1.07, 1.31))
ACTS = ["add", "replace", "remove", "fail", "fail", "restart", "restart", "slow"]
SOME = 24  # arrivals of a short program

Act = tuple[int, str, int, int, int]  # when, what, which worker, which runtime, a duration


@dataclass(frozen=True)
class Program:
    settings: Settings
    runtimes: list[Runtime]
    bundles: list[tuple[list[int], int]]  # runtimes, in-flight limit; numbered on after the runtimes
    first: list[tuple[int, int]]  # workers: runtime, from when on
    arrivals: list[tuple[int, int]]  # when, length
    acts: list[Act]


def made(policy: str, seed: int, size: int, *, bulk: bool = False) -> Program:
    """A program drawn from a seed. Times are small integers: nearly everything happens at equal times now and then."""
    draw = Random(seed)
    one_length = policy == "uniform"
    lengths = [64] if one_length else draw.sample([16, 32, 64, 128], draw.randint(1, 4))
    runtimes = [
        runtime(draw, length) for length in sorted(lengths) for _ in range(1 if one_length else draw.randint(1, 2))
    ]
    first = [
        (draw.randrange(len(runtimes)), draw.choice([0, 0, 0, draw.randint(0, 30)]))
        for _ in range(draw.choice([0, 1, 2, 3, 4, 6, 8]))
    ]
    gap = draw.choice([0, 1, 2, 5, 5, 8])
    at, arrivals = 0, []
    for _ in range(size):
        at += draw.randint(0, gap)
        arrivals.append((at, draw.randint(0, max(lengths) + 3)))
    acts = [
        (
            draw.randint(0, at + 40),
            draw.choice(ACTS),
            draw.randrange(8),
            draw.randrange(len(runtimes)),
            draw.randint(0, 25),
        )
        for _ in range(draw.randint(0, 14))
    ]
    settings = Settings(
        policy=policy,
        slo=draw.randint(1, 40),
        max_peek=draw.randint(1, 6),
        max_queued=draw.choice([0, 3, 10, 4096, 4096, 4096]),
        timeout=draw.choice([None, None, draw.randint(1, 60)]),
        overhead=draw.choice([0, 0, 3]),
        hop_out=draw.choice([0, 0, 1, 4]),
        hop_back=draw.choice([0, 0, 1, 6]),
        retries=draw.randint(0, 3),
        seed=seed,
        warmup=draw.choice([0, 0, 20]),
        noise=draw.choice(NOISE),
        batching=draw.choice(["one", "one", "fill", "deadline"]),
        bulk_share=draw.choice([0, 0.3, 1]) if bulk else 0.0,
    )
    numbers = list(range(len(runtimes)))
    bundles = [
        (draw.sample(numbers, draw.randint(1, len(numbers))), draw.choice([1, 1, 2, 5]))
        for _ in range(draw.choice([0, 1, 2]))
    ]
    most = len(runtimes) + len(bundles)
    first = [(draw.choice([number, draw.randrange(most)]), at) for number, at in first]
    acts = [(*what[:3], draw.choice([what[3], draw.randrange(most)]), what[4]) for what in acts]
    return Program(settings, runtimes, bundles, first, arrivals, sorted(acts))


def runtime(draw: Random, length: int) -> Runtime:
    dynamic = draw.random() < 0.3
    alone = draw.randint(0 if draw.random() < 0.1 else 2, 9)
    max_batch = draw.choice([1, 1, 1, 3, 4])
    points = [(length, 1, alone)]
    if dynamic:
        points.append((1, 1, draw.randint(1, alone + 1)))
    if max_batch > 1:
        points.append((length, max_batch, alone + draw.randint(0, 8)))
    return Runtime(
        max_length=length,
        capacity=draw.randint(1, 6),
        latency=points,
        max_batch=max_batch,
        dynamic=dynamic,
        inflight_limit=draw.choice([1, 1, 2, 5, 300]),
        truth=draw.choice([None, None, [(length, 1, draw.randint(1, 20))]]),
    )


def programs(policy: str) -> st.SearchStrategy[Program]:
    return st.builds(made, st.just(policy), st.integers(0, 2**32), st.sampled_from([3, SOME, 120]), bulk=st.booleans())


def engine(settings: Settings, *, record: bool = True) -> _core.Simulation:
    noise = np.array(settings.noise) if settings.noise else None
    s = settings
    return _core.Simulation(
        s.policy,
        slo=s.slo,
        max_peek=s.max_peek,
        max_queued=s.max_queued,
        timeout=s.timeout,
        overhead=s.overhead,
        hop_out=s.hop_out,
        hop_back=s.hop_back,
        retries=s.retries,
        seed=s.seed,
        warmup=s.warmup,
        record=record,
        noise=noise,
        batching=s.batching,
        bulk_share=s.bulk_share,
    )


def add_runtime(sim: _core.Simulation, r: Runtime) -> int:
    return sim.add_runtime(
        r.max_length,
        r.capacity,
        r.latency,
        max_batch=r.max_batch,
        dynamic=r.dynamic,
        inflight_limit=r.inflight_limit,
        truth=r.truth,
    )


def add_all(sim: _core.Simulation, program: Program) -> None:
    """The runtimes, bundles and first workers of a program."""
    for each in program.runtimes:
        add_runtime(sim, each)
    for members, limit in program.bundles:
        sim.add_bundle(members, inflight_limit=limit)
    for number, at in program.first:
        sim.add_worker(number, at)


def feed(sim: _core.Simulation, arrivals: list[tuple[int, int]]) -> None:
    times = np.array([at for at, _ in arrivals], np.int64)
    sim.feed(times, np.array([length for _, length in arrivals], np.int32))


def act(sim: Any, what: Act, states: list[int]) -> None:
    """Does it to `sim`, the simulator or the plain one; `states` of the workers now."""
    at, kind, which, to, duration = what
    if kind == "add":
        sim.add_worker(to, at + duration)
        return
    alive = [i for i, state in enumerate(states) if state != 3]
    if not alive:
        return
    worker = alive[which % len(alive)]
    match kind:
        case "replace":
            sim.replace(worker, to, duration)
        case "remove":
            sim.remove(worker)
        case "fail":
            sim.fail(worker, None)
        case "restart":
            sim.fail(worker, duration)
        case "slow":
            sim.slow(worker, (0.5, 1.0, 3.0)[duration % 3])


def rows(columns: dict[str, NDArray[Any]]) -> list[tuple[int, ...]]:
    """The columns of a simulation, or those of its workers, as tuples."""
    return list(zip(*(values.tolist() for values in columns.values()), strict=True))
