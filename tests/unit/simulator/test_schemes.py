"""Schemes: what each of the paper's is made of, and what may be set."""

from __future__ import annotations

import pytest

from arlo import _core
from arlo.errors import ConfigError
from arlo.simulator.profiles import Profile, capacity, load_profile
from arlo.simulator.scenario.scenario import Dispatch
from arlo.simulator.scenario.schemes import SCHEMES, runtimes_of, scheme


@pytest.fixture(scope="module")
def base() -> Profile:
    return load_profile("bert-base")


def test_st_pads_all_to_the_longest(base: Profile) -> None:
    st = scheme("st")
    (runtime,) = runtimes_of("st", base)
    assert (runtime.max_length, runtime.dynamic, runtime.points) == (512, False, ((512, 1, 4.86),))
    assert (st["dispatch"].policy, st["allocate"].kind, st["scale"].kind) == ("uniform", "even", "none")


def test_dt_has_one_dynamic_runtime(base: Profile) -> None:
    (runtime,) = runtimes_of("dt", base)
    assert (runtime.max_length, runtime.dynamic, scheme("dt")["dispatch"].policy) == (512, True, "uniform")
    assert len(runtime.points) == 16


def test_infaas_has_all_variants_and_does_not_look_at_lengths(base: Profile) -> None:
    infaas, runtimes = scheme("infaas"), runtimes_of("infaas", base)
    assert [runtime.max_length for runtime in runtimes] == list(range(64, 513, 64))
    assert (infaas["dispatch"].policy, infaas["allocate"].kind, infaas["allocate"].start) == ("infaas", "even", "even")
    assert [capacity(runtime, 150) for runtime in runtimes] == [1] * 8
    assert [runtime.capacity for runtime in runtimes_of("paper", base)] == [None] * 8  # M is that of Eq. 3


def test_arlo_is_the_paper_s(base: Profile) -> None:
    dispatch, allocate = (scheme("paper")[name] for name in ("dispatch", "allocate"))
    assert [runtime.max_length for runtime in runtimes_of("paper", base)] == list(range(64, 513, 64))
    assert (dispatch.policy, dispatch.lambda_, dispatch.alpha, dispatch.max_peek) == ("rs", 0.85, 0.9, 6)
    assert (allocate.kind, allocate.period_s, allocate.objective) == ("periodic", 120, "paper")


def test_ours() -> None:
    ours = scheme("arlo")
    found = ours["dispatch"].policy, ours["allocate"].kind, ours["allocate"].objective
    assert found == ("late", "periodic", "queueing")


@pytest.mark.parametrize(
    ("name", "kind", "new_runtime"),
    [
        ("st", "headroom", "longest"),
        ("dt", "headroom", "longest"),
        ("infaas", "headroom", "least_headroom"),
        ("paper", "target", "longest"),
        ("arlo", "target", "longest"),
    ],
)
def test_scaling_of_its_own(name: str, kind: str, new_runtime: str) -> None:
    scale = scheme(name, scaling=True)["scale"]
    assert (scale.kind, scale.new_runtime) == (kind, new_runtime)
    assert scheme(name)["scale"].kind == "none"


@pytest.mark.parametrize("kind", ["periodic", "even", "global", "oracle"])
def test_what_is_given_replaces_its_own(kind: str) -> None:
    allocate = scheme("paper", kind=kind, objective="queueing")["allocate"]  # type: ignore[arg-type]
    assert (allocate.kind, allocate.objective) == (kind, "queueing")
    assert allocate.start == {"even": "even", "global": "global"}.get(kind, "first")
    fixed = scheme("paper", instances=(3, 1), policy="late")
    assert (fixed["allocate"].kind, fixed["allocate"].start) == ("fixed", (3, 1))
    assert fixed["dispatch"] == Dispatch(policy="late")


@pytest.mark.parametrize("name", SCHEMES)
def test_lengths_and_batches(name: str) -> None:
    tables = load_profile("bert-base-t4-fp16")
    runtimes = runtimes_of(name, tables, (128, 256), max_batch=8)
    assert runtimes[-1].max_length == 256
    for runtime in runtimes:
        assert runtime.max_batch == 8
        assert {batch for _, batch, _ in runtime.points} == {1, 2, 4, 8}


def test_packing_fills_one_instance_before_the_next(base: Profile) -> None:
    """The shipped rule with M = 2: two requests on one instance, then the next one."""
    runtime = runtimes_of("infaas", base, (512,), max_batch=2)[0]
    scheduler = _core.Scheduler("infaas")
    number = scheduler.add_runtime(512, capacity(runtime, 150), [(512, 1, 4_860_000)])
    for _ in range(3):
        scheduler.join(number, 1, 0)
    for tag in range(5):
        scheduler.arrive(tag, 20, 0)
    outstanding = [scheduler.view(i).in_flight + scheduler.view(i).queued for i in range(3)]
    assert sorted(outstanding) == [1, 2, 2]


def test_what_is_wrong_is_said(base: Profile) -> None:
    with pytest.raises(ConfigError, match="did you mean 'arlo'"):
        scheme("arl")
    with pytest.raises(ConfigError, match="1 to 512 tokens, not 1024"):
        runtimes_of("paper", base, (64, 1024))
    with pytest.raises(ConfigError, match="max_batch is at least 1"):
        runtimes_of("paper", base, max_batch=0)
