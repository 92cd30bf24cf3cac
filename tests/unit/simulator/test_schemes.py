"""Schemes: what each of the paper's is made of, and what may be set."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from arlo import _core
from arlo.errors import ConfigError
from arlo.simulator.profiles import Profile, capacity, load_profile
from arlo.simulator.scenario.scenario import Allocate, Dispatch, Scale
from arlo.simulator.scenario.schemes import SCHEMES, max_lengths, scheme

MS = 1_000_000


@pytest.fixture(scope="module")
def base() -> Profile:
    return load_profile("bert-base")


class Three:
    """A workload of three requests."""

    name = "three"
    duration_s = 1.0

    def chunks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        yield np.array([0, 1, 2], np.int64), np.array([5, 6, 512], np.int32)

    def describe(self) -> str:
        return "three requests"


class TestSchemes:
    def test_st_pads_all_to_the_longest(self, base: Profile) -> None:
        st_ = scheme("st", base, workers=4)
        (runtime,) = st_.runtimes
        assert (runtime.max_length, runtime.dynamic, runtime.points) == (512, False, ((512, 1, 4.86),))
        assert (st_.dispatch.policy, st_.allocate.kind, st_.scale.kind) == ("uniform", "even", "none")

    def test_dt_has_one_dynamic_runtime(self, base: Profile) -> None:
        dt = scheme("dt", base, workers=4)
        (runtime,) = dt.runtimes
        assert (runtime.max_length, runtime.dynamic, dt.dispatch.policy) == (512, True, "uniform")
        assert len(runtime.points) == 16

    def test_infaas_has_all_variants_and_does_not_look_at_lengths(self, base: Profile) -> None:
        infaas = scheme("infaas", base, workers=10)
        assert [runtime.max_length for runtime in infaas.runtimes] == list(range(64, 513, 64))
        assert (infaas.dispatch.policy, infaas.allocate.kind, infaas.allocate.start) == ("infaas", "even", "even")
        assert [capacity(runtime, 150) for runtime in infaas.runtimes] == [1] * 8
        arlo = scheme("paper", base, workers=10)
        assert [runtime.capacity for runtime in arlo.runtimes] == [None] * 8  # M is that of Eq. 3

    def test_arlo_is_the_paper_s(self, base: Profile) -> None:
        arlo = scheme("paper", base, workers=10)
        assert [runtime.max_length for runtime in arlo.runtimes] == list(range(64, 513, 64))
        assert (arlo.dispatch.policy, arlo.dispatch.lambda_, arlo.dispatch.alpha, arlo.dispatch.max_peek) == (
            "rs", 0.85, 0.9, 6,
        )  # fmt: skip
        assert (arlo.allocate.kind, arlo.allocate.period_s, arlo.allocate.objective) == ("periodic", 120, "paper")

    def test_ours(self, base: Profile) -> None:
        ours = scheme("arlo", base, workers=10)
        assert (ours.dispatch.policy, ours.allocate.kind, ours.allocate.objective) == ("late", "periodic", "queueing")

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
    def test_scaling_of_its_own(self, base: Profile, name: str, kind: str, new_runtime: str) -> None:
        scale = scheme(name, base, workers=5, scaling=True).scale
        assert (scale.kind, scale.new_runtime) == (kind, new_runtime)
        assert scheme(name, base, workers=5).scale.kind == "none"

    @pytest.mark.parametrize("name", SCHEMES)
    def test_every_field_can_be_set(self, base: Profile, name: str) -> None:
        dispatch = Dispatch(policy="ilb", max_queued=9)
        allocate = Allocate(kind="global", solver="gurobi")
        scale = Scale(kind="target", max_workers=7)
        made = scheme(
            name, base, workers=3, max_lengths=(128, 256), policy=dispatch, allocation=allocate, scaling=scale
        )
        assert (made.dispatch, made.allocate, made.scale) == (dispatch, allocate, scale)
        assert made.runtimes[-1].max_length == 256
        assert scheme(name, base, workers=3, policy="late").dispatch == Dispatch(policy="late")

    @pytest.mark.parametrize("kind", ["periodic", "even", "global", "oracle"])
    def test_kinds_of_allocation(self, base: Profile, kind: str) -> None:
        made = scheme("paper", base, workers=8, allocation=kind, objective="queueing")  # type: ignore[arg-type]
        assert (made.allocate.kind, made.allocate.objective) == (kind, "queueing")
        assert made.allocate.start == {"even": "even", "global": "global"}.get(kind, "first")

    def test_given_and_shared_instances(self, base: Profile) -> None:
        fixed = scheme("paper", base, workers=4, max_lengths=(64, 512), allocation=(3, 1)).allocate
        assert (fixed.kind, fixed.start) == ("fixed", (3, 1))

    def test_batches(self) -> None:
        tables = load_profile("bert-base-t4-fp16")
        for name in SCHEMES:
            for runtime in scheme(name, tables, workers=2, max_batch=8).runtimes:
                assert runtime.max_batch == 8
                assert {batch for _, batch, _ in runtime.points} == {1, 2, 4, 8}

    @pytest.mark.parametrize("name", SCHEMES)
    def test_the_scheduler_takes_the_pieces(self, base: Profile, name: str) -> None:
        made = scheme(name, base, workers=2)
        scenario = made.scenario(Three(), seed=4)
        assert (scenario.name, scenario.slo_ms, scenario.seed) == (SCHEMES[name], 150, 4)
        scheduler = _core.Scheduler(scenario.dispatch.policy, max_queued=100)
        for runtime in scenario.runtimes:
            points = [(length, batch, round(ms * MS)) for length, batch, ms in runtime.points]
            number = scheduler.add_runtime(
                runtime.max_length, capacity(runtime, scenario.slo_ms), points, dynamic=runtime.dynamic
            )
            scheduler.join(number, 1, 0)
        for tag, length in enumerate((5, 6, 512)):
            admission, _, _ = scheduler.arrive(tag, length, 0)
            assert admission in (_core.Admission.STARTED, _core.Admission.QUEUED)

    def test_scenario_fields_replace_the_pieces(self, base: Profile) -> None:
        made = scheme("st", base, workers=2)
        assert made.scenario(Three(), slo_ms=99.0, workers=3).workers == 3
        with pytest.raises(ConfigError, match="did you mean 'slo_ms'"):
            made.scenario(Three(), slo=99.0)


class TestInfaas:
    def test_packing_fills_one_instance_before_the_next(self, base: Profile) -> None:
        """The shipped rule with M = 2: two requests on one instance, then the next one."""
        runtime = scheme("infaas", base, workers=3, max_lengths=(512,), max_batch=2).runtimes[0]
        scheduler = _core.Scheduler("infaas")
        number = scheduler.add_runtime(512, capacity(runtime, 150), [(512, 1, 4_860_000)])
        for _ in range(3):
            scheduler.join(number, 1, 0)
        for tag in range(5):
            scheduler.arrive(tag, 20, 0)
        outstanding = [scheduler.view(i).in_flight + scheduler.view(i).queued for i in range(3)]
        assert sorted(outstanding) == [1, 2, 2]


class TestMaxLengths:
    def test_of_the_paper(self) -> None:
        assert max_lengths(2) == (256, 512)
        assert max_lengths(8) == tuple(range(64, 513, 64))
        assert max_lengths(16) == tuple(range(32, 513, 32))
        assert max_lengths(3) == (171, 341, 512)
        assert max_lengths(1) == (512,)


class TestBadInputs:
    @pytest.mark.parametrize(
        ("fields", "says"),
        [
            ({"name": "arl"}, "did you mean 'arlo'"),
            ({"workers": 0}, "at least 1 worker"),
            ({"allocation": "perodic"}, "did you mean 'periodic'"),
            ({"allocation": "fixed"}, "given by its numbers"),
            ({"allocation": (1, 2)}, "one number for each of the 8 runtimes, 4 in all"),
            ({"allocation": (4, 0, 0, 0, 0, 0, 1, -1)}, "one number for each"),
            ({"allocation": Allocate(), "objective": "paper"}, "inside the Allocate"),
            ({"max_lengths": (64, 1024)}, "1 to 512 tokens, not 1024"),
            ({"max_batch": 0}, "max_batch is at least 1"),
        ],
    )
    def test_say_what_is_wrong(self, base: Profile, fields: dict[str, object], says: str) -> None:
        arguments = {"name": "paper", "profile": base, "workers": 4, **fields}
        with pytest.raises(ConfigError, match=says):
            scheme(**arguments)  # type: ignore[arg-type]

    def test_of_helpers(self) -> None:
        for n in (0, 513):
            with pytest.raises(ConfigError, match="1 to 512"):
                max_lengths(n)
