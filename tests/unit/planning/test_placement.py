"""Laying an allocation over workers: stories. What holds for any cluster: tests/property/test_placement_brute_force."""

from __future__ import annotations

import pytest

from arlo.planning.placement.assignment import assign, changed, shrink
from arlo.planning.view import WorkerView


def worker(
    id_: str, serving: str | None = None, *, loaded: str = "", busy: float = 0.0, usable: bool = True
) -> WorkerView:
    names = tuple(dict.fromkeys([*([serving] if serving else []), *loaded.split()]))
    return WorkerView(id=id_, serving=serving, loaded=names, busy=busy, usable=usable)


def test_an_empty_cluster_is_filled_longest_first_in_order() -> None:
    fleet = [worker("w0"), worker("w1"), worker("w2")]
    assert assign({"s64": 2, "s512": 1}, fleet) == {"w0": "s512", "w1": "s64", "w2": "s64"}


def test_the_least_busy_of_a_runtime_changes() -> None:
    fleet = [worker("w0", "s64", busy=0.9), worker("w1", "s64", busy=0.2), worker("w2", "s64", busy=0.5)]
    assert assign({"s64": 2, "s512": 1}, fleet) == {"w0": "s64", "w1": "s512", "w2": "s64"}


def test_a_loaded_runtime_counts_more_than_being_busy() -> None:
    fleet = [worker("w0", "s64", busy=0.9, loaded="s512"), worker("w1", "s64", busy=0.2)]
    assert assign({"s64": 1, "s512": 1}, fleet) == {"w0": "s512", "w1": "s64"}


def test_the_longest_runtime_goes_to_an_idle_worker_when_one_is_needed() -> None:
    fleet = [worker("w0", "s64", busy=0.1), worker("w1")]
    assert assign({"s128": 1, "s512": 1}, fleet) == {"w0": "s128", "w1": "s512"}


def test_too_many_workers_leave_the_least_busy_idle() -> None:
    fleet = [worker("w0", "s64", busy=0.9), worker("w1", "s64", busy=0.2), worker("w2")]
    assert assign({"s64": 1}, fleet) == {"w0": "s64"}


def test_no_worker_and_no_instance_give_nothing() -> None:
    assert assign({"s64": 1}, []) == {}
    assert assign({}, [worker("w0", "s64")]) == {}
    assert assign({"s64": 0}, [worker("w0", "s64")]) == {}


@pytest.mark.parametrize(
    ("workers", "given"),
    [
        (9, {"s64": 6, "s128": 2, "s512": 1}),
        (6, {"s64": 4, "s128": 1, "s512": 1}),
        (3, {"s64": 1, "s128": 1, "s512": 1}),
        (2, {"s64": 1, "s512": 1}),
        (1, {"s512": 1}),
        (0, {}),
    ],
)
def test_too_few_workers_keep_the_longest_runtime_and_the_shares(workers: int, given: dict[str, int]) -> None:
    assert shrink({"s64": 6, "s128": 2, "s512": 1}, workers) == given


def test_a_longest_runtime_that_is_not_wanted_is_not_given() -> None:
    assert shrink({"s64": 4, "s512": 0}, 2) == {"s64": 2}


def test_changed_counts_who_comes_and_who_goes() -> None:
    current = {"w0": "s64", "w1": None, "w2": "s64", "w3": "s64", "w4": None}
    assert changed(current, {"w0": "s64", "w1": "s64", "w2": "s512", "w5": "s64"}) == ("w1", "w2", "w3", "w5")
