"""Replacement plans: stories. What holds for any cluster: tests/property/test_replacement_invariants."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from arlo.planning.placement.replacement import Step, carried, replacement_plan
from arlo.planning.view import RuntimeView

RUNTIMES = [
    RuntimeView(name="s64", max_length=64, capacity=40),
    RuntimeView(name="s128", max_length=128, capacity=20),
    RuntimeView(name="s512", max_length=512, capacity=10),
]


def fleet(text: str) -> dict[str, str | None]:
    """`64 512 -`: w0 has s64, w1 has s512, w2 is idle."""
    return {f"w{i}": None if word == "-" else f"s{word}" for i, word in enumerate(text.split())}


def plan(
    current: str,
    desired: str,
    *,
    demand: Sequence[float] = (0, 0, 0),
    max_parallel: int = 1,
    overlap: bool = False,
    runtimes: Sequence[RuntimeView] = RUNTIMES,
) -> list[str]:
    """One line for each step: its changes, what it carries, and whether it interrupts."""
    steps = replacement_plan(
        fleet(current),
        {worker: name for worker, name in fleet(desired).items() if name},
        runtimes=runtimes,
        demand=demand,
        max_parallel=max_parallel,
        overlap=overlap,
    )
    return [told(step) for step in steps]


def told(step: Step) -> str:
    changes = ", ".join(f"{c.worker} {c.before or '-'}>{c.after or '-'}" for c in step.changes)
    return f"{changes}: {step.carried:g}" + (" interrupts" if step.interrupts else "")


def test_nothing_to_do_is_an_empty_plan() -> None:
    assert plan("64 512", "64 512") == []


def test_longest_runtime_swapped_between_two_workers() -> None:
    assert plan("512 64", "64 512") == ["w1 s64>s512: 0", "w0 s512>s64: 0"]


@pytest.mark.parametrize("overlap", [False, True])
def test_longest_runtime_moved_round_a_ring(overlap: bool) -> None:
    steps = plan("512 64 128", "64 128 512", demand=(1, 1, 1), overlap=overlap)
    order = [step.split(":")[0] for step in steps]
    assert sorted(order) == ["w0 s512>s64", "w1 s64>s128", "w2 s128>s512"]
    assert order.index("w2 s128>s512") < order.index("w0 s512>s64")
    assert not any("interrupts" in step for step in steps)


def test_the_first_step_makes_the_longest_runtime_when_nothing_serves_it() -> None:
    steps = plan("64 64 -", "64 512 128", demand=(60, 10, 5))
    assert steps == ["w1 s64>s512: 40", "w2 ->s128: 50"]


def test_one_worker_that_leaves_the_longest_runtime_says_so() -> None:
    assert plan("512", "64") == ["w0 s512>s64: 0 interrupts"]
    assert plan("512", "64", overlap=True) == ["w0 s512>s64: 0 interrupts"]


def test_an_idle_worker_that_gains_a_runtime_goes_first() -> None:
    assert plan("64 512 512 -", "64 512 64 512", demand=(30, 0, 15)) == ["w3 ->s512: 45", "w2 s512>s64: 45"]


def test_workers_that_become_idle_come_last() -> None:
    assert plan("64 64 512", "- 512 512", max_parallel=3) == ["w1 s64>s512: 0", "w0 s64>-: 0"]


def test_a_step_is_as_large_as_the_load_allows() -> None:
    """Four s64 carry 160; with 75 wanted two may be away, with 85 one."""
    four = ("64 64 64 64 512", "128 128 128 64 512")
    assert [step.count(",") + 1 for step in plan(*four, demand=(75, 0, 0), max_parallel=4)] == [2, 1]
    assert [step.count(",") + 1 for step in plan(*four, demand=(95, 0, 0), max_parallel=4)] == [1, 1, 1]
    assert [step.count(",") + 1 for step in plan(*four, demand=(0, 0, 0), max_parallel=4)] == [3]
    assert [step.count(",") + 1 for step in plan(*four, demand=(0, 0, 0), max_parallel=2)] == [2, 1]


def test_with_overlap_more_may_move_at_once() -> None:
    """Each worker goes from 20 to 40 for the short requests: nothing is missed at any moment when both overlap."""
    step = ("128 128 512", "64 64 512")
    demand = (40, 0, 5)
    assert plan(*step, demand=demand, max_parallel=2) == ["w0 s128>s64: 30", "w1 s128>s64: 45"]
    assert plan(*step, demand=demand, max_parallel=2, overlap=True) == ["w0 s128>s64, w1 s128>s64: 45"]
    assert plan(*step, demand=(20, 20, 5), max_parallel=2, overlap=True) == ["w0 s128>s64: 45", "w1 s128>s64: 30"]


def test_an_overloaded_cluster_moves_one_by_one_and_loses_the_least() -> None:
    """Both changes lose; the one of s128 (20) less than that of s64 (40)."""
    steps = plan("64 64 128 512", "64 128 64 512", demand=(200, 50, 10), max_parallel=4)
    assert steps == ["w2 s128>s64: 90", "w1 s64>s128: 90"]


def test_a_runtime_that_is_not_known_any_more_carries_nothing() -> None:
    current: dict[str, str | None] = {"w0": "old", "w1": "s512"}
    (step,) = replacement_plan(
        current, {"w0": "s64", "w1": "s512"}, runtimes=RUNTIMES, demand=(30, 0, 0), max_parallel=2, overlap=False
    )
    assert told(step) == "w0 old>s64: 10"


def test_two_runtimes_of_the_longest_length_stand_in_for_each_other() -> None:
    """w0 goes to the other one while w1 serves; the other order would leave none for a time."""
    both = [*RUNTIMES, RuntimeView(name="sdyn", max_length=512, capacity=8)]
    steps = plan("dyn dyn", "512 64", demand=(1, 0, 0, 0), runtimes=both)
    assert [step.split(":")[0] for step in steps] == ["w0 sdyn>s512", "w1 sdyn>s64"]
    assert not any("interrupts" in step for step in steps)
    assert plan("dyn", "512", demand=(0, 0, 0, 0), runtimes=both) == ["w0 sdyn>s512: 0 interrupts"]
    assert plan("dyn", "512", demand=(0, 0, 0, 0), runtimes=both, overlap=True) == ["w0 sdyn>s512: 0"]


def test_demand_belongs_to_the_runtimes_by_length_whatever_their_order() -> None:
    demand = (60, 10, 5)
    assert plan("64 64 -", "64 512 128", demand=demand, runtimes=RUNTIMES[::-1]) == plan(
        "64 64 -", "64 512 128", demand=demand
    )


def test_carried_demotes_but_never_promotes() -> None:
    capacities = [40, 20, 10]
    assert carried([1, 1, 1], capacities, [40, 20, 10]) == 70
    assert carried([0, 0, 3], capacities, [40, 20, 10]) == 30
    assert carried([9, 0, 0], capacities, [40, 20, 10]) == 40
    assert carried([1, 1, 1], capacities, [55, 5, 5]) == 65
    assert carried([0, 0, 0], capacities, [1, 1, 1]) == 0
