"""assign() against every placement there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arlo.planning.placement.assignment import assign, changed, shrink
from arlo.planning.view import WorkerView

NAMES = ["s64", "s128", "s512"]


@st.composite
def fleets(draw: st.DrawFn, most: int) -> list[WorkerView]:
    fleet = []
    for index in range(draw(st.integers(0, most))):
        serving = draw(st.sampled_from([None, *NAMES, "old"]))
        loaded = draw(st.sets(st.sampled_from(NAMES))) | ({serving} if serving else set())
        busy = draw(st.sampled_from([0.0, 0.3, 0.9]))
        usable = draw(st.integers(0, 4)) > 0
        fleet.append(WorkerView(id=f"w{index}", serving=serving, loaded=tuple(loaded), busy=busy, usable=usable))
    return fleet


def allocations(most: int) -> st.SearchStrategy[dict[str, int]]:
    counts = st.lists(st.integers(0, most), min_size=len(NAMES), max_size=len(NAMES))
    return counts.map(lambda given_: dict(zip(NAMES, given_, strict=True)))


def placements(wanted: Mapping[str, int], workers: Sequence[WorkerView]) -> Iterator[dict[str, str]]:
    for choice in product([None, *NAMES], repeat=len(workers)):
        if Counter(name for name in choice if name) == Counter(wanted):
            yield {worker.id: name for worker, name in zip(workers, choice, strict=True) if name}


def moved(placement: Mapping[str, str], workers: Sequence[WorkerView]) -> int:
    return len(changed({worker.id: worker.serving for worker in workers}, placement))


def ready(placement: Mapping[str, str], workers: Sequence[WorkerView]) -> int:
    """Workers that change to a runtime that they have loaded."""
    return sum(
        placement[worker.id] != worker.serving and placement[worker.id] in worker.loaded
        for worker in workers
        if worker.id in placement
    )


@settings(max_examples=300, deadline=None)
@given(allocation=allocations(3), fleet=fleets(5))
def test_fewest_changes_and_then_most_that_are_loaded(allocation: dict[str, int], fleet: list[WorkerView]) -> None:
    usable = [worker for worker in fleet if worker.usable]
    placement = assign(allocation, fleet)
    wanted = shrink(allocation, len(usable))
    assert Counter(placement.values()) == Counter(wanted)
    assert set(placement) <= {worker.id for worker in usable}
    every = list(placements(wanted, usable))
    fewest = min(moved(other, usable) for other in every)
    assert moved(placement, usable) == fewest
    assert ready(placement, usable) == max(ready(other, usable) for other in every if moved(other, usable) == fewest)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(allocation=allocations(20), fleet=fleets(40))
def test_a_placement_is_kept_by_the_next_call(allocation: dict[str, int], fleet: list[WorkerView]) -> None:
    placement = assign(allocation, fleet)
    later = [
        WorkerView(id=worker.id, usable=worker.usable, loaded=worker.loaded, serving=placement.get(worker.id))
        for worker in fleet
    ]
    assert assign(allocation, later) == placement == assign(allocation, fleet)


@given(allocation=allocations(20), workers=st.integers(0, 60))
def test_a_shrunk_allocation_uses_every_worker_and_grows_one_by_one(allocation: dict[str, int], workers: int) -> None:
    less, more = shrink(allocation, workers), shrink(allocation, workers + 1)
    total = sum(allocation.values())
    assert sum(less.values()) == min(workers, total)
    assert all(less.get(name, 0) <= more.get(name, 0) <= allocation[name] for name in NAMES)
    longest = [name for name in NAMES if allocation[name]][-1:]
    assert not workers or all(less[name] >= 1 for name in longest)
