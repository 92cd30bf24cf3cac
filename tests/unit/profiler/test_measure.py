"""Measuring one point: warm-up, repetitions, interval, which points; without a worker."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from arlo.catalog.manifest import InputTensor, Manifest, OutputTensor, Runtime
from arlo.errors import ConfigError
from arlo.profiler.interval import half_width, percentile, student_t
from arlo.profiler.job import ProfileOptions, choose_runtimes
from arlo.profiler.machine import CpuTimes, describe_device, engine_versions, gpu_names
from arlo.profiler.measure import LEAST_S, LEAST_SAMPLES, Stopped, Until, repeat, warm_up
from arlo.profiler.points import choose_points, default_batches
from arlo.profiler.wire import infer_request

UNTIL = Until(confidence=0.95, precision=0.02, max_seconds=10.0)


class FakeWorker:
    """A clock that each call moves on by the next of `times_s`; the last one goes on for ever."""

    def __init__(self, times_s: Iterable[float]) -> None:
        self.now_s = 100.0
        self.calls = 0
        self._times = iter(times_s)
        self._last = 0.0

    def now(self) -> float:
        return self.now_s

    def call(self) -> None:
        self.calls += 1
        self._last = next(self._times, self._last)
        self.now_s += self._last


def never() -> bool:
    return False


def run(
    measure: Callable[..., Any], worker: FakeWorker, until: Until = UNTIL, stopped: Callable[[], bool] = never
) -> Any:
    return measure(worker.call, until, now=worker.now, stopped=stopped)


def test_warm_up_ends_when_it_is_stable() -> None:
    falling = FakeWorker([0.1 * 0.7**k for k in range(20)] + [0.1 * 0.7**20])
    assert 20 <= run(warm_up, falling) <= 30
    assert run(warm_up, FakeWorker([0.01])) == 10


def test_warm_up_is_bounded_in_calls_and_in_time() -> None:
    swings = itertools.cycle([*[0.001] * 5, *[0.003] * 5])
    assert run(warm_up, FakeWorker(swings)) == 50
    assert run(warm_up, FakeWorker([1.5])) == 2  # a fifth of 10 s


def test_a_steady_worker_takes_the_least_samples() -> None:
    assert len(run(repeat, FakeWorker([0.02]))) == LEAST_SAMPLES
    assert len(run(repeat, FakeWorker([0.001]))) >= LEAST_S / 0.001 - 1


def test_it_goes_on_until_the_interval_is_narrow() -> None:
    rng = random.Random(5)
    patient = Until(confidence=0.95, precision=0.02, max_seconds=60.0)
    times = run(repeat, FakeWorker(rng.uniform(0.005, 0.015) for _ in itertools.count()), patient)
    assert len(times) > 2 * LEAST_SAMPLES
    assert half_width(times, 0.95) <= 0.02 * statistics.fmean(times)
    assert statistics.fmean(times) == pytest.approx(0.01, rel=0.04)


def test_max_seconds_end_a_point_that_never_settles_but_three_are_taken() -> None:
    rng = random.Random(5)
    noisy = FakeWorker(rng.choice([0.01, 0.5]) for _ in itertools.count())
    times = run(repeat, noisy)
    assert 10.0 <= sum(times) < 10.6
    assert len(run(repeat, FakeWorker([20.0]))) == 3


def test_stopping() -> None:
    worker = FakeWorker([0.01])
    with pytest.raises(Stopped):
        run(repeat, worker, stopped=lambda: worker.calls >= 7)
    assert worker.calls == 7
    with pytest.raises(Stopped):
        run(warm_up, worker, stopped=lambda: True)
    assert worker.calls == 7


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 9, 30])
@pytest.mark.parametrize("probability", [0.9, 0.975, 0.995])
def test_student_t_is_that_of_scipy(probability: float, freedom: int) -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    assert student_t(probability, freedom) == pytest.approx(scipy_stats.t.ppf(probability, freedom), rel=1e-6)


def test_half_width_of_few_samples() -> None:
    assert half_width([1.0], 0.95) == math.inf
    assert half_width([1.0, 1.0, 1.0], 0.95) == 0.0
    # 4 samples, standard deviation 1: t(0.975, 3) / sqrt(4)
    assert half_width([-1.0, 1.0, -1.0, 1.0], 0.95) == pytest.approx(3.1824 / 2 * math.sqrt(4 / 3), rel=1e-4)


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    rng = random.Random(11)
    for count in (12, 60, 104):
        held = 0
        for _ in range(400):
            samples = [rng.gauss(10, 2) for _ in range(count)]
            held += abs(statistics.fmean(samples) - 10) <= half_width(samples, 0.95)
        assert 0.92 <= held / 400 <= 0.98


def test_alike_neighbours_widen_the_interval() -> None:
    rng = random.Random(2)
    blocks = [rng.gauss(10, 1) for _ in range(20)]
    alike = [value for value in blocks for _ in range(10)]
    shuffled = rng.sample(alike, len(alike))
    assert half_width(alike, 0.95) > 2 * half_width(shuffled, 0.95)


def test_percentile() -> None:
    samples = [float(value) for value in range(100, 0, -1)]
    assert (percentile(samples, 0.5), percentile(samples, 0.98), percentile(samples, 1.0)) == (50, 98, 100)
    assert percentile([3.0], 0.98) == 3.0


def runtime(*, max_length: int = 512, max_batch: int = 1, dynamic: bool = False, name: str = "m") -> Runtime:
    return Runtime(
        name=name,
        max_length=max_length,
        max_batch=max_batch,
        dynamic=dynamic,
        engine="emulated",
        precision="fp32",
        device="",
        latency=(),
    )


def test_points_of_a_static_runtime() -> None:
    assert choose_points(runtime(max_batch=6)) == [(512, 1), (512, 2), (512, 4), (512, 6)]
    assert choose_points(runtime(max_batch=6), lengths=[64], batches=[4, 1, 16]) == [(512, 1), (512, 4)]
    with pytest.raises(ConfigError, match="max_batch 6"):
        choose_points(runtime(max_batch=6), batches=[8])


def test_points_of_a_dynamic_runtime() -> None:
    points = choose_points(runtime(dynamic=True, max_batch=2))
    assert [length for length, batch in points if batch == 1] == list(range(512, 0, -32))
    assert [length for length, batch in points if batch == 2] == [512, 384, 256, 128]
    assert choose_points(runtime(dynamic=True), lengths=[8, 600, 100]) == [(512, 1), (100, 1), (8, 1)]
    assert choose_points(runtime(dynamic=True, max_length=16)) == [(16, 1)]
    assert choose_points(runtime(dynamic=True, max_length=100)) == [(100, 1), (96, 1), (64, 1), (32, 1)]


@pytest.mark.parametrize("max_length", [1, 31, 32, 33, 128, 500, 512, 513, 2048, 8192])
def test_points_are_few_and_reach_max_length(max_length: int) -> None:
    points = choose_points(runtime(dynamic=True, max_length=max_length, max_batch=4))
    for batch in (1, 2, 4):
        lengths = [length for length, rows in points if rows == batch]
        assert lengths[0] == max_length
        assert lengths == sorted(set(lengths), reverse=True)
        assert len(lengths) <= (17 if batch == 1 else 6)


def test_default_batches() -> None:
    assert [default_batches(n) for n in (1, 2, 3, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8]]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"confidence": 1.0}, "--confidence"),
        ({"precision": 0.0}, "--precision"),
        ({"max_seconds": -1.0}, "--max-seconds"),
        ({"lengths": (0,)}, "--lengths"),
        ({"batches": (4, -2)}, "--batches"),
    ],
)
def test_options_are_checked(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ProfileOptions(**options)


def manifest(*runtimes: Runtime) -> Manifest:
    return Manifest(
        model="m",
        task="embedding",
        source="test",
        tokenizer=None,
        inputs=(
            InputTensor(name="ids", datatype="INT32", role="ids", pad_value=9),
            InputTensor(name="mask", datatype="INT64", role="mask", pad_value=1),
            InputTensor(name="kind", datatype="INT64", role="other", pad_value=3),
            InputTensor(name="optional", datatype="INT64", role="other", optional=True),
        ),
        outputs=(OutputTensor(name="y", datatype="FP32", token_level=False, dims=(2,)),),
        runtimes=runtimes,
    )


def test_choose_runtimes() -> None:
    known = manifest(runtime(name="a"), runtime(name="b"))
    assert [chosen.name for chosen in choose_runtimes(known, ())] == ["a", "b"]
    assert [chosen.name for chosen in choose_runtimes(known, ("b",))] == ["b"]
    with pytest.raises(ConfigError, match="no runtime 'c'; it has: a, b"):
        choose_runtimes(known, ("c",))


def test_a_request_is_padded_as_the_gateway_pads() -> None:
    raw = infer_request(manifest(), runtime(name="m_len6"), length=6, batch=2, outputs=("y",), real=4)
    request = service_pb2.ModelInferRequest.FromString(raw)
    assert request.model_name == "m_len6"
    assert [(t.name, t.datatype, list(t.shape)) for t in request.inputs] == [
        ("ids", "INT32", [2, 6]),
        ("mask", "INT64", [2, 6]),
        ("kind", "INT64", [2, 6]),
        ("optional", "INT64", [2, 6]),
    ]
    ids, mask, kind, optional = request.raw_input_contents
    assert list(memoryview(ids).cast("i")) == [10, 11, 12, 13, 9, 9] * 2
    assert list(memoryview(mask).cast("q")) == [1, 1, 1, 1, 0, 0] * 2
    assert list(memoryview(kind).cast("q")) == [3] * 12
    assert list(memoryview(optional).cast("q")) == [0] * 12
    assert [output.name for output in request.outputs] == ["y"]


def test_load_of_others() -> None:
    before = CpuTimes(total_s=100.0, busy_s=40.0, ours_s=10.0)
    assert before.other_load(CpuTimes(total_s=102.0, busy_s=41.5, ours_s=11.0)) == pytest.approx(0.25)
    assert before.other_load(CpuTimes(total_s=102.0, busy_s=41.0, ours_s=11.2)) == 0.0
    assert before.other_load(CpuTimes(total_s=100.05, busy_s=40.0, ours_s=10.0)) is None
    now = CpuTimes.read(os.getpid())
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    assert CpuTimes.read(os.getpid()).ours_s > now.ours_s + 0.29  # a child that has ended is ours, too
    now = CpuTimes.read(None)
    assert now.total_s > now.busy_s > 0
    assert now.ours_s > 0


def repository(folder: Path, kind: str) -> Path:
    (folder / "m").mkdir(exist_ok=True)
    (folder / "m" / "config.pbtxt").write_text(f"instance_group [ {{ count: 1 kind: {kind} }} ]")
    return folder


def test_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = manifest(dataclasses.replace(runtime(), engine="onnxruntime"))
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert describe_device(repository(tmp_path, "KIND_GPU"), real, threads=1) == "gpu: NVIDIA H200"
    assert describe_device(repository(tmp_path, "KIND_CPU"), real, threads=2).startswith("cpu: ")
    assert describe_device(repository(tmp_path, "KIND_CPU"), real, threads=2).endswith(", 2 threads")
    program.write_text("#!/bin/sh\nexit 9\n")
    assert gpu_names() == []
    assert describe_device(repository(tmp_path, "KIND_GPU"), real, threads=1).endswith(", 1 thread")
    assert describe_device(tmp_path / "nowhere", manifest(runtime()), threads=1) == "emulated"
    with pytest.raises(ConfigError, match="runtime m of the manifest has no config"):
        describe_device(tmp_path / "nowhere", real, threads=1)


def test_versions_of_the_engines() -> None:
    built = dataclasses.replace(runtime(), engine="tensorrt-not-here")
    assert engine_versions(manifest(runtime(), built)) == {}
    known = dataclasses.replace(manifest(built), tools={"tensorrt-not-here": "10.1"})
    assert engine_versions(known) == {"tensorrt-not-here": "10.1"}
    assert engine_versions(manifest(dataclasses.replace(runtime(), engine="numpy"))) == {"numpy": np.__version__}
