"""Static per length, dynamic and padded runtimes compared over a traffic."""

from __future__ import annotations

import dataclasses
import re

import pytest

from arlo.catalog.manifest import LatencyPoint, Manifest, Runtime
from arlo.planning.lengths.advice import LEAST_SAVED, advise, dynamic_runtime, missing

TRAFFIC = {10: 50, 64: 20, 100: 20, 512: 10}


def runtime(
    length: int, points: dict[int, int], *, dynamic: bool = False, profiles: tuple[int, ...] = (), device: str = "gpu"
) -> Runtime:
    kind = "profiles" if profiles else "dynamic" if dynamic else "len"
    return Runtime(
        name=f"m_{kind}{length}",
        max_length=length,
        max_batch=1,
        dynamic=dynamic,
        engine="emulated",
        precision="fp16",
        device=device,
        latency=tuple(LatencyPoint(length=at, batch=1, latency_us=us) for at, us in points.items()),
        profiles=profiles,
    )


STATIC = (runtime(64, {64: 1000}), runtime(128, {128: 2000}), runtime(512, {512: 8000}))


def manifest(*runtimes: Runtime) -> Manifest:
    return Manifest(
        model="m", task="embedding", source="made up", tokenizer=None, inputs=(), outputs=(), runtimes=runtimes
    )


def dynamic(factor: float) -> Runtime:
    """Takes `factor` times what a static runtime takes at its full length."""
    points = {length: round(us * factor) for length, us in ((64, 1000), (128, 2000), (512, 8000))}
    return runtime(512, points, dynamic=True)


def test_static_is_recommended_where_kernels_of_a_fixed_shape_are_quicker() -> None:
    found = advise(manifest(*STATIC, dynamic(2.0)), TRAFFIC, lengths="a made-up traffic")
    assert found is not None
    # 70 rows on 64, 20 on 128, 10 on 512; the dynamic runtime takes 100 tokens in 2 x (1000 + 1000 * 36 / 64) us.
    assert found.mean_us == {"static": 1900.0, "padded": 8000.0, "dynamic": 3625.0}
    assert (found.serve, found.device, found.lengths) == ("static", "gpu", "a made-up traffic")
    assert found.why == (
        "over a made-up traffic, a row takes 1.9 ms on static runtimes, 3.62 ms on the dynamic runtime and 8 ms padded "
        "to the longest: a runtime per length saves 48%"
    )
    assert [(row.length, row.static_us, row.dynamic_us, row.padded_us) for row in found.compared] == [
        (64, 1000.0, 2000.0, 8000.0),
        (128, 2000.0, 4000.0, 8000.0),
        (512, 8000.0, 16000.0, 8000.0),
    ]


def test_at_equal_times_dynamic_wins_as_it_need_not_pad() -> None:
    found = advise(manifest(*STATIC, dynamic(1.0)), TRAFFIC, lengths="t")
    assert found is not None
    assert found.serve == "dynamic"
    assert found.mean_us["dynamic"] < found.mean_us["static"]
    assert "would take 5% longer" in found.why


def test_a_small_saving_does_not_pay() -> None:
    at_the_ends = {64: 70, 128: 20, 512: 10}
    just_below, just_above = 1 / (1 - LEAST_SAVED) - 0.01, 1 / (1 - LEAST_SAVED) + 0.01
    small = advise(manifest(*STATIC, dynamic(just_below)), at_the_ends, lengths="t")
    enough = advise(manifest(*STATIC, dynamic(just_above)), at_the_ends, lengths="t")
    assert small is not None
    assert small.serve == "dynamic"
    assert "less than the 15% that make it pay" in small.why
    assert enough is not None
    assert enough.serve == "static"


def test_several_profiles_are_a_rival_of_their_own() -> None:
    profiles = runtime(512, {64: 1000, 128: 2000, 512: 8000}, dynamic=True, profiles=(64, 128, 512))
    both = manifest(*STATIC, dynamic(2.0), profiles)
    found = advise(both, TRAFFIC, lengths="t")
    assert found is not None
    assert found.serve == "dynamic"
    assert found.mean_us["profiles"] < found.mean_us["static"] < found.mean_us["dynamic"]
    assert "on one engine with several profiles" in found.why
    assert dynamic_runtime(both) is both.runtimes[3]  # nothing recommended yet: the plain one
    assert dynamic_runtime(dataclasses.replace(both, recommendation=found)) is profiles
    alone = advise(manifest(*STATIC, profiles), TRAFFIC, lengths="t")
    assert alone is not None
    assert "dynamic" not in alone.mean_us
    assert alone.compared[0].dynamic_us is None


def test_batches_do_not_enter() -> None:
    batched = dataclasses.replace(
        STATIC[0], max_batch=4, latency=(*STATIC[0].latency, LatencyPoint(length=64, batch=4, latency_us=1200))
    )
    assert advise(manifest(batched, *STATIC[1:], dynamic(2.0)), TRAFFIC, lengths="t") == advise(
        manifest(*STATIC, dynamic(2.0)), TRAFFIC, lengths="t"
    )


def test_requests_that_nothing_takes_are_left_out() -> None:
    whole = manifest(*STATIC, dynamic(2.0))
    assert advise(whole, {**TRAFFIC, 513: 1_000_000, 0: 5}, lengths="t") == advise(whole, TRAFFIC, lengths="t")
    assert advise(whole, {600: 1}, lengths="t") is None


@pytest.mark.parametrize(
    ("runtimes", "text"),
    [
        (STATIC, "no dynamic runtime to compare with"),
        ((dynamic(1.0),), "no static runtime to compare with"),
        (
            (*STATIC, runtime(512, {}, dynamic=True)),
            "no latency of m_dynamic512 was measured: run `arlo compile profile",
        ),
        ((runtime(64, {}), runtime(512, {}), dynamic(1.0)), "no latency of m_len64 and 1 more was measured"),
        ((*STATIC, runtime(512, {512: 9}, dynamic=True, device="cpu")), r"different devices \(cpu; gpu\)"),
        ((*STATIC, runtime(256, {256: 9}, dynamic=True)), "static runtime takes 512 tokens and a dynamic one 256"),
    ],
)
def test_what_is_missing_is_said(runtimes: tuple[Runtime, ...], text: str) -> None:
    assert advise(manifest(*runtimes), TRAFFIC, lengths="t") is None
    assert re.search(text, missing(manifest(*runtimes)))


def test_a_busy_machine_is_noticed() -> None:
    """A fixed shape cannot make kernels slower, so a static runtime that takes far longer was measured badly."""
    found = advise(manifest(*STATIC, dynamic(0.7)), TRAFFIC, lengths="t")
    assert found is not None
    assert found.why.endswith("a sign of other work on the machine: measure again when it is quiet")
    assert "for 64 tokens was measured far slower" in found.why
    quiet = advise(manifest(*STATIC, dynamic(0.95)), TRAFFIC, lengths="t")
    assert quiet is not None
    assert "other work" not in quiet.why
