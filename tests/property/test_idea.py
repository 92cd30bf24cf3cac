"""docs/idea.py decides as the scheduler does: the same batches on the same workers, event by event."""

from __future__ import annotations

import heapq
import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

from arlo import _core

IDEA = Path(__file__).parents[2] / "docs" / "idea.py"
MS = 1_000_000
NEVER = 10**15


def load() -> Any:
    spec = importlib.util.spec_from_file_location("idea", IDEA)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["idea"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


idea = load()


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Any], list[int], list[tuple[int, int, int]]]:
    """Runtimes, homes of the workers, and arrivals: when, of how many tokens, with how much time."""
    lengths = sorted(draw(st.sets(st.integers(8, 512), min_size=1, max_size=4)))
    batches = []
    for length in lengths:
        base, each, most = draw(st.integers(10_000, 3 * MS)), draw(st.integers(500, 15_000)), draw(st.integers(1, 12))
        # Odd numbers: no two things end in the same instant.
        batches.append(tuple(base + each * length * rows + 7 * rows * rows for rows in range(1, most + 1)))
    slo = round(max(times[-1] for times in batches) * draw(st.floats(1.5, 12)))
    runtimes = [
        idea.Runtime(length, times, max(1, slo // (times[-1] // len(times))))
        for length, times in zip(lengths, batches, strict=True)
    ]
    homes = list(range(len(lengths))) + draw(st.lists(st.integers(0, len(lengths) - 1), max_size=4))
    chance = random.Random(draw(st.integers(0, 2**32)))
    count, load = draw(st.integers(20, 250)), draw(st.floats(0.3, 1.5))
    span = round(count / load / sum(1 / runtimes[home].share() for home in homes))
    at = sorted(chance.sample(range(span + count), count))
    if draw(st.booleans()):  # in bursts
        at = [time // (5 * MS) * 5 * MS + place for place, time in enumerate(at)]
    mean = chance.uniform(4, lengths[-1])
    return (
        runtimes,
        homes,
        [
            (time, min(lengths[-1], 1 + int(chance.expovariate(1 / mean))), round(slo * chance.uniform(0.6, 1.4)))
            for time in at
        ],
    )


def test_it_decides_as_the_scheduler_does() -> None:
    compared: dict[str, int] = {"batches": 0, "several rows": 0, "longer than home": 0, "whole runs": 0}

    @given(world=worlds())
    @settings(max_examples=300, deadline=None)
    def check(world: tuple[list[Any], list[int], list[tuple[int, int, int]]]) -> None:
        run_both(*world, compared)

    check()
    assert compared["batches"] > 5000, compared
    assert min(compared["several rows"], compared["longer than home"]) > 1000, compared
    assert compared["whole runs"] > 100, compared


def run_both(
    runtimes: list[Any], homes: list[int], arrivals: list[tuple[int, int, int]], compared: dict[str, int]
) -> None:
    plain = idea.Scheduler(runtimes, homes)
    real = _core.Scheduler("late", max_queued=10**6, batching="deadline")
    for runtime in runtimes:
        points = [(runtime.length, rows, time) for rows, time in enumerate(runtime.batch_ns, 1)]
        real.add_runtime(runtime.length, runtime.capacity, points, max_batch=len(points))
    for home in homes:
        real.join(home, 1, 0)
    handles: dict[int, int | None] = {}  # of the real one, by number
    due: dict[int, int] = {}
    events = [(at, 1, length, slo) for at, length, slo in arrivals]  # kind 0: a worker is free
    while events:
        now, kind, what, slo = heapq.heappop(events)
        if kind == 1:
            number = plain.arrived
            due[number] = now + slo - slo // 16
            queue = bool(plain.lines[plain.home(what)])
            _, handles[number], actions = real.arrive(number, what, now, NEVER, due=now + slo)
            started = plain.arrive(what, now + slo, now)
        else:
            worker = plain.workers[what]
            actions = []
            for row in worker.rows:
                handle = handles[row.number]
                assert handle is not None
                actions += real.finish(handle, now)
            started = plain.end(worker, now)
        got: dict[int, list[int]] = {}
        for action in actions:
            assert action.kind is _core.ActionKind.START
            assert action.instance is not None
            got.setdefault(action.instance, []).append(action.tag)
            handles[action.tag] = action.handle
        ends = {
            number: now + runtimes[homes[on]].batch_ns[len(tags) - 1] for on, tags in got.items() for number in tags
        }
        yields = kind == 1 and queue and any(tags[0] == number for tags in got.values())
        if yields or real.overdue() > 0 or any(end > due[number] for number, end in ends.items()):
            return  # some row can hardly be on time: beyond the idea
        note(f"{now}: {got}")
        assert got == {plain.workers.index(worker): [row.number for row in rows] for worker, rows in started}
        for worker, rows in started:
            heapq.heappush(events, (worker.free, 0, plain.workers.index(worker), 0))
            compared["batches"] += 1
            compared["several rows"] += len(rows) > 1
            compared["longer than home"] += worker.home > plain.home(rows[0].length)
    compared["whole runs"] += 1
    assert not any(plain.lines)


def test_it_runs() -> None:
    told = subprocess.run([sys.executable, IDEA], capture_output=True, text=True, check=True).stdout
    assert told.startswith("10000 rows in ")
    assert len(IDEA.read_text().splitlines()) <= 150
