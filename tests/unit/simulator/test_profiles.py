"""Latency profiles: the facts of the paper, published tables, what was measured; and how the scheduler reads them."""

from __future__ import annotations

import dataclasses
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arlo import _core
from arlo.catalog.manifest import InputTensor, LatencyPoint, Manifest, Runtime
from arlo.errors import ArloError, ConfigError
from arlo.planning.allocation.curves import curve
from arlo.profiler.staircase import staircase as find_steps
from arlo.simulator.profiles import (
    capacity,
    load_profile,
    lognormal_quantiles,
    profile_names,
    tables,
)
from arlo.simulator.profiles.inflation import DESCRIPTIONS
from arlo.simulator.scenario.scenario import RuntimeModel
from benchmarks.papers.arlo.published import derive, to_json
from tests.fakes.development_data import development_file

MS = 1_000_000


def believed(runtime: RuntimeModel, length: int, batch: int) -> float:
    """What the request scheduler makes of a runtime's points, ms."""
    scheduler = _core.Scheduler()
    points = [(at, rows, round(ms * MS)) for at, rows, ms in runtime.points]
    number = scheduler.add_runtime(
        runtime.max_length, capacity(runtime, 1000), points, max_batch=runtime.max_batch, dynamic=runtime.dynamic
    )
    return scheduler.cost(number, length, batch) / MS


class TestEstimated:
    def test_the_facts_of_bert_base(self) -> None:
        base = load_profile("bert-base")
        assert base.kind == "estimated"
        assert base.slo_ms == 150
        assert base.static_ms(512) == pytest.approx(4.86)
        assert base.static_ms(512) / base.static_ms(64) == pytest.approx(4.22)
        assert base.static_ms(512) / base.static_ms(20) == pytest.approx(4.28)

    def test_the_facts_of_bert_large(self) -> None:
        large = load_profile("bert-large")
        assert large.slo_ms == 450
        assert large.static_ms(512) / large.static_ms(64) == pytest.approx(5.25)

    @pytest.mark.parametrize("name", ["bert-base", "bert-large"])
    def test_steps_of_64_with_less_than_5_percent_inside(self, name: str) -> None:
        profile = load_profile(name)
        edges = range(64, 513, 64)
        for edge in edges:
            inside = [profile.static_ms(n) for n in range(edge - 63, edge + 1)]
            assert inside == sorted(inside)
            assert inside[-1] / inside[0] < 1.05
        for edge in edges[:-1]:
            assert profile.static_ms(edge + 1) > 1.05 * profile.static_ms(edge)
        ends = np.array([profile.static_ms(edge) for edge in edges])
        assert np.diff(ends) == pytest.approx(np.full(7, (ends[-1] - ends[0]) / 7))

    def test_the_profiler_finds_its_steps(self) -> None:
        found = find_steps([(n, load_profile("bert-base").static_ms(n)) for n in range(8, 513, 8)])
        assert (found.shape, found.step, found.uniform) == ("steps", 64, True)

    def test_lengths_between_the_steps_take_what_the_step_takes(self) -> None:
        base = load_profile("bert-base")
        for length in range(32, 512, 64):
            assert 0.98 < base.static_ms(length) / base.static_ms(length + 32) < 1

    def test_a_batch_takes_what_its_tokens_take(self) -> None:
        base = load_profile("bert-base")
        assert base.static_ms(64, 8) == pytest.approx(base.static_ms(512))
        assert base.static_ms(128, 4) == pytest.approx(base.static_ms(512))
        assert base.static_ms(64, 3) == pytest.approx(base.static_ms(192))

    def test_the_scale_of_bert_large(self) -> None:
        ratio = statistics.median(
            tables.tables()[f"bert-large-{gpu}-fp16"]["latency_ms"]["1"][1]
            / tables.tables()[f"bert-base-{gpu}-fp16"]["latency_ms"]["1"][1]
            for gpu in ("a100", "a30", "l4", "l40s", "t4", "v100")
        )
        large, base = load_profile("bert-large").static_ms(384), load_profile("bert-base").static_ms(384)
        assert large / base == pytest.approx(round(ratio, 2))


class TestDynamicShapes:
    @pytest.mark.parametrize("variant", sorted(DESCRIPTIONS))
    @pytest.mark.parametrize("name", ["bert-base", "bert-large", "bert-base-t4-fp16"])
    def test_inflation_is_within_the_paper_s(self, name: str, variant: str) -> None:
        profile = load_profile(name, dynamic=variant)
        factors = [profile.dynamic_ms(n) / profile.static_ms(n) for n in range(1, 513)]
        low, high = (1.0, 1.0) if variant == "none" else (1.22, 3.56)
        assert low - 1e-5 <= min(factors)  # latencies are whole nanoseconds
        assert max(factors) <= high + 1e-5

    def test_each_model_does_what_it_says(self) -> None:
        def ends(variant: str) -> tuple[float, float]:
            profile = load_profile("bert-base", dynamic=variant)
            return profile.dynamic_ms(64) / profile.static_ms(64), profile.dynamic_ms(512) / profile.static_ms(512)

        assert ends("least") == pytest.approx((1.22, 1.22))
        assert ends("most") == pytest.approx((3.56, 3.56))
        assert ends("added") == pytest.approx((1 + 0.22 * 4.22, 1.22))
        published = load_profile("bert-base", dynamic="published")
        assert published.dynamic_ms(512) / published.dynamic_ms(64) == pytest.approx(3.633 / 1.165)
        added = load_profile("bert-base")
        extra = {round(added.dynamic_ms(n) - added.static_ms(n), 6) for n in (1, 64, 65, 300, 512)}
        assert extra == {round(0.22 * 4.86, 6)}

    def test_a_staircase_stays_one(self) -> None:
        for variant in sorted(DESCRIPTIONS):
            profile = load_profile("bert-base", dynamic=variant)
            for edge in range(64, 512, 64):
                assert profile.dynamic_ms(edge) / profile.dynamic_ms(edge - 63) < 1.05
                assert profile.dynamic_ms(edge + 1) / profile.dynamic_ms(edge) > 1.015

    def test_a_smaller_range_is_as_fast(self) -> None:
        base = load_profile("bert-base")
        assert base.dynamic_ms(70, max_length=128) == base.dynamic_ms(70)
        runtime = base.dynamic_runtime(100)
        assert max(length for length, _, _ in runtime.points) == 100
        assert believed(runtime, 100, 1) == pytest.approx(base.dynamic_ms(100), rel=1e-6)
        with pytest.raises(ConfigError, match="1 to 128 tokens, not 129"):
            base.dynamic_ms(129, max_length=128)


class TestTables:
    def test_published_latencies_come_back(self) -> None:
        for name, table in tables.tables().items():
            profile = load_profile(name)
            assert profile.kind == "derived"
            assert table["source"] in profile.source
            for batch, (short, long) in table["latency_ms"].items():
                assert profile.static_ms(128, int(batch)) == pytest.approx(short)
                assert profile.static_ms(384, int(batch)) == pytest.approx(long)
                assert profile.static_ms(256, int(batch)) == pytest.approx((short + long) / 2)

    def test_by_tokens(self) -> None:
        profile = load_profile("bert-base-a100")
        published = tables.tables()["bert-base-a100-fp16"]["latency_ms"]
        for batch, (short, long) in published.items():
            assert profile.static_ms(128, int(batch)) == pytest.approx(short)
            assert profile.static_ms(384, int(batch)) == pytest.approx(long)
        assert profile.static_ms(32, 32) == profile.static_ms(64, 16) == pytest.approx(published["8"][0])
        assert profile.static_ms(32, 1) == pytest.approx(published["1"][0])
        assert "by -34% for a row alone, by -7% for 128 rows" in profile.source

    def test_the_first_step_is_the_floor(self) -> None:
        profile = load_profile("bert-base-l4-fp16")
        assert profile.static_ms(1) == profile.static_ms(64) == pytest.approx(1.00 - (2.09 - 1.00) / 4)

    def test_all_models_and_gpus(self) -> None:
        gpus = {name.split("-")[2] for name in tables.names()}
        assert gpus == {"a100", "a30", "l4", "l40s", "t4", "v100"}
        assert len(tables.tables()) == 24

    def test_longer_never_takes_less(self) -> None:
        for name in profile_names():
            profile = load_profile(name)
            for batch in (1, 2, 8):
                line = [profile.static_ms(n, batch) for n in range(16, 513, 16)]
                assert line == sorted(line)

    def test_the_data_file_is_what_is_derived(self) -> None:
        assert to_json(derive(development_file("latency/bert_tensorrt_demo.csv"))) == tables.DATA.read_text()

    def test_suspect_and_older_rows_are_left_out(self, tmp_path: Path) -> None:
        head = "gpu,model,precision,engine,batch,seq_len,latency_ms,p95_ms,p99_ms,source,note\n"
        lines = [
            "NVIDIA X1 (8GB),BERT Base,FP16,e,1,128,3,,,o/r release/9.2@a:f,",
            "NVIDIA X1 (8GB),BERT Base,FP16,e,1,384,5,,,o/r release/9.2@a:f,",
            "NVIDIA X1,BERT Base,FP16,e,1,128,2,,,o/r release/10.1@b:f,",
            "NVIDIA X1,BERT Base,FP16,e,1,384,4,,,o/r release/10.1@b:f,",
            "NVIDIA X1,BERT Base,FP16,e,2,128,4,,,o/r release/10.1@b:f,",  # no 384: left out
            "NVIDIA X1,BERT Base,FP16,e,1,128,9,,,o/r release/10.9@c:f,suspect",
            "NVIDIA X1,Megatron,FP16,e,1,128,9,,,o/r release/10.9@c:f,",
        ]
        path = tmp_path / "t.csv"
        path.write_text(head + "\n".join(lines) + "\n")
        (table,) = derive(path)["tables"]
        assert (table["name"], table["latency_ms"]) == ("bert-base-x1-fp16", {"1": [2, 4]})
        path.write_text(head + "X,BERT Base,FP16,e,1,128,9,,,somewhere,\n")
        with pytest.raises(ConfigError, match="no release in the source 'somewhere'"):
            derive(path)


def manifest(runtimes: list[Runtime]) -> Manifest:
    return Manifest(
        model="mini",
        task="embedding",
        source="a test",
        tokenizer=None,
        inputs=(InputTensor(name="input_ids", datatype="INT64", role="ids"),),
        outputs=(),
        runtimes=tuple(runtimes),
    )


def measured(max_length: int, points: dict[tuple[int, int], int], *, dynamic: bool = False) -> Runtime:
    latency = tuple(LatencyPoint(length=length, batch=batch, latency_us=us) for (length, batch), us in points.items())
    return Runtime(
        name=f"{'d' if dynamic else 's'}{max_length}", max_length=max_length, max_batch=4, dynamic=dynamic,
        engine="onnxruntime", precision="fp32", device="a CPU", latency=latency,
    )  # fmt: skip


class TestMeasured:
    def test_a_repository(self, tmp_path: Path) -> None:
        static = [measured(64, {(64, 1): 2000, (64, 4): 5000}), measured(128, {(128, 1): 4000, (128, 4): 9000})]
        ranges = measured(128, {(16, 1): 1000, (128, 1): 5000, (16, 4): 2000, (128, 4): 15000}, dynamic=True)
        manifest([*static, ranges]).save(tmp_path)
        for path in (tmp_path, tmp_path / "arlo.json"):
            profile = load_profile(path)
            assert (profile.name, profile.kind, profile.step, profile.max_length) == ("mini", "measured", 64, 128)
            assert "a CPU" in profile.source
            assert profile.static_ms(64) == 2
            assert profile.static_ms(96) == 3  # not compiled: the line between
            assert profile.static_ms(128, 2) == pytest.approx(4 + 5 / 3)
            assert profile.dynamic_ms(72) == 3
            assert profile.dynamic_ms(72, 4) == 8.5
            assert profile.slo_ms == 120
        assert load_profile(tmp_path, dynamic="least").dynamic_ms(128) == pytest.approx(1.22 * 4)
        runtime = profile.dynamic_runtime(max_batch=4)
        assert believed(runtime, 72, 4) == pytest.approx(8.5)

    def test_what_a_load_takes(self, tmp_path: Path) -> None:
        """Between two compiled lengths on the line; not known where nothing was measured."""
        static = [measured(64, {(64, 1): 2000}), measured(128, {(128, 1): 4000}), measured(256, {(256, 1): 9000})]
        ranges = measured(256, {(16, 1): 1000, (256, 1): 9500}, dynamic=True)
        manifest([*static, ranges]).save(tmp_path)
        assert [runtime.load_ms for runtime in load_profile(tmp_path).static_runtimes((64, 128))] == [None, None]
        known = [dataclasses.replace(one, load_ms=ms) for one, ms in zip(static, (400, None, 1000), strict=True)]
        manifest([*known, dataclasses.replace(ranges, load_ms=3000)]).save(tmp_path)
        profile = load_profile(tmp_path)
        assert [runtime.load_ms for runtime in profile.static_runtimes((64, 160, 256))] == [400, 700, 1000]
        assert profile.dynamic_runtime().load_ms == 3000
        assert load_profile(tmp_path, dynamic="least").dynamic_runtime().load_ms is None

    def test_without_dynamic_runtime(self, tmp_path: Path) -> None:
        manifest([measured(64, {(64, 1): 2000})]).save(tmp_path)
        profile = load_profile(tmp_path)
        with pytest.raises(ConfigError, match="name a model for one"):
            profile.dynamic_ms(3)

    def test_without_static_runtimes(self, tmp_path: Path) -> None:
        manifest([measured(64, {(8, 1): 1000, (60, 1): 2000}, dynamic=True)]).save(tmp_path)
        profile = load_profile(tmp_path)
        assert profile.dynamic_ms(64) == 2
        with pytest.raises(ConfigError, match="dynamic-shape runtimes only"):
            profile.static_ms(64)
        with pytest.raises(ConfigError, match="needs static runtimes"):
            load_profile(tmp_path, dynamic="most")

    def test_unmeasured_runtimes_are_left_out(self, tmp_path: Path) -> None:
        manifest([measured(64, {(64, 1): 1500}), measured(128, {})]).save(tmp_path)
        profile = load_profile(tmp_path)
        assert (profile.max_length, profile.static_ms(64)) == (64, 1.5)
        manifest([measured(128, {})]).save(tmp_path)
        with pytest.raises(ConfigError, match="measure them with `arlo compile profile`"):
            load_profile(tmp_path)


class TestRuntimes:
    @given(
        name=st.sampled_from(["bert-base", "bert-large", "bert-base-t4-fp16", "bert-large-v100-int8"]),
        variant=st.sampled_from(sorted(DESCRIPTIONS)),
        length=st.integers(1, 512),
        max_batch=st.sampled_from([1, 2, 5, 8, 32]),
        data=st.data(),
    )
    @settings(max_examples=60, deadline=None)
    def test_the_scheduler_reads_them_alike(
        self, name: str, variant: str, length: int, max_batch: int, data: st.DataObject
    ) -> None:
        profile = load_profile(name, dynamic=variant)
        batch = data.draw(st.integers(1, max_batch))
        static = profile.static_runtime(length, max_batch=max_batch)
        ranges = profile.dynamic_runtime(max_batch=max_batch)
        at_most = 2e-6  # ms; the scheduler's points are whole ns
        assert believed(static, 1, batch) == pytest.approx(profile.static_ms(length, batch), rel=1e-6, abs=at_most)
        assert believed(ranges, length, batch) == pytest.approx(
            profile.dynamic_ms(length, batch), rel=1e-6, abs=at_most
        )
        assert curve(ranges, length).batch_ms(batch) == pytest.approx(profile.dynamic_ms(length, batch))

    def test_above_the_largest_batch_in_proportion(self) -> None:
        profile = load_profile("bert-base-t4-fp16")
        assert profile.static_ms(128, 256) == pytest.approx(2 * profile.static_ms(128, 128))

    def test_capacity(self) -> None:
        base = load_profile("bert-base")
        assert capacity(base.static_runtime(512), 150) == 30  # floor(150 / 4.86)
        assert capacity(base.static_runtime(64), 150) == 130
        assert capacity(base.static_runtime(512), 1) == 1
        ranges = base.dynamic_runtime()
        assert capacity(ranges, 150) == 25  # floor(150 / 5.93)
        assert capacity(ranges, 150, length=86) == math.floor(150 / base.dynamic_ms(86))
        assert capacity(dataclasses.replace(base.static_runtime(64), capacity=7), 150) == 7

    def test_ascending_and_once(self) -> None:
        runtimes = load_profile("bert-base").static_runtimes([128, 64, 128])
        assert [runtime.max_length for runtime in runtimes] == [64, 128]
        assert [runtime.name for runtime in runtimes] == ["static-64", "static-128"]


class TestBadInputs:
    @pytest.mark.parametrize(
        ("call", "says"),
        [
            (lambda: load_profile("bert-bse"), "did you mean 'bert-base'"),
            (lambda: load_profile("bert-base", dynamic="addad"), "did you mean 'added'"),
            (lambda: load_profile("bert-base").static_ms(513), "1 to 512 tokens, not 513"),
            (lambda: load_profile("bert-base").dynamic_ms(0), "1 to 512 tokens, not 0"),
            (lambda: load_profile("bert-base").static_ms(5, 0), "at least 1 row"),
            (lambda: load_profile("bert-base").dynamic_runtime(600), "1 to 512 tokens, not 600"),
            (lambda: load_profile("bert-base").static_runtime(64, max_batch=0), "max_batch is at least 1"),
            (lambda: lognormal_quantiles(-0.1), "at least 0"),
            (lambda: lognormal_quantiles(40.0), "at most 31.9"),
        ],
    )
    def test_say_what_is_wrong(self, call: object, says: str) -> None:
        with pytest.raises(ArloError, match=says):
            call()  # type: ignore[operator]


class TestNoise:
    @given(part=st.floats(0, 0.99), n=st.integers(1, 5000))
    @example(part=0.3, n=2)
    @settings(max_examples=30, deadline=None)
    def test_mean_is_one_and_the_deviation_is_as_asked_for(self, part: float, n: int) -> None:
        cv = part * math.sqrt(n - 1) / 2
        values = lognormal_quantiles(cv, n)
        assert values.shape == (n,)
        assert values.dtype == np.float64
        assert values.mean() == pytest.approx(1, abs=1e-12)
        assert values.std() == pytest.approx(cv, rel=1e-6, abs=1e-9)
        assert (np.diff(values) >= 0).all()
        assert values.min() > 0

    def test_wide_ones_are_not_cut(self) -> None:
        for cv in (0.05, 0.3, 1.0, 3.0, 10.0):
            assert lognormal_quantiles(cv).std() == pytest.approx(cv, rel=1e-6)
        assert (lognormal_quantiles(0.0) == 1).all()

    def test_quantiles_are_those_of_a_lognormal(self) -> None:
        values = lognormal_quantiles(0.2)
        sigma = math.sqrt(math.log(1.04))
        at_84 = values[round(4096 * statistics.NormalDist().cdf(1))]
        assert at_84 == pytest.approx(math.exp(sigma - sigma**2 / 2), rel=0.005)
