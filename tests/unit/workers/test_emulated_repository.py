"""The repository writer of the emulated engine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from arlo.catalog.manifest import LatencyPoint, Manifest
from arlo.cli import main
from arlo.errors import ConfigError
from arlo.simulator.profiles import load_profile
from arlo.workers.emulated.repository import EmulatedRuntime, write_emulated_repository, write_runtimes


def test_the_manifest_says_what_was_written(tmp_path: Path) -> None:
    written = write_emulated_repository(
        tmp_path, model="m", max_lengths=[64, 512], latency_ms=[1.15, 4.86], max_batch=2, batch_growth=0.25
    )
    assert Manifest.load(tmp_path) == written
    assert [runtime.name for runtime in written.runtimes] == ["m_len64", "m_len512"]
    assert all(runtime.engine == "emulated" and not runtime.dynamic for runtime in written.runtimes)
    assert written.runtimes[1].latency == (
        LatencyPoint(length=512, batch=1, latency_us=4860),
        LatencyPoint(length=512, batch=2, latency_us=6075),
    )
    config = (tmp_path / "m_len512" / "config.pbtxt").read_text()
    assert 'value { string_value: "512:1:4860,512:2:6075" }' in config
    assert "dims: [ 512, 4 ]" in config
    assert "dynamic_batching" not in config
    assert (tmp_path / "m_len512" / "1").is_dir()


def test_a_profile_makes_runtimes_of_batches_by_lengths(tmp_path: Path) -> None:
    profile = load_profile("bert-base-a100")
    common = ["compile", "emulate", "--profile", "bert-base-a100", "--max-batch", "32", "--slower", "10"]
    assert main([*common, "--out", str(tmp_path / "static"), "--max-lengths", "64,128", "--batcher"]) == 0
    manifest = Manifest.load(tmp_path / "static")
    assert [(runtime.max_length, runtime.max_batch) for runtime in manifest.runtimes] == [(64, 32), (128, 32)]
    for runtime in manifest.runtimes:
        times = {point.batch: point.latency_us for point in runtime.latency}
        assert {1, 8, 32} <= set(times)
        assert times[32] == round(1e4 * profile.static_ms(runtime.max_length, 32))
    config = (tmp_path / "static/emulated_len128/config.pbtxt").read_text()
    assert "dynamic_batching { }" in config  # and no queue policy: Triton would now and then sleep for 500 ms
    assert main([*common, "--out", str(tmp_path / "one"), "--max-lengths", "64,128", "--dynamic"]) == 0
    (dynamic,) = Manifest.load(tmp_path / "one").runtimes
    assert (dynamic.dynamic, dynamic.max_length, dynamic.max_batch) == (True, 128, 32)
    assert main([*common[:-1], "0", "--out", str(tmp_path), "--max-lengths", "64"]) == 2


def test_a_dynamic_runtime_has_the_points_up_to_its_length(tmp_path: Path) -> None:
    written = write_emulated_repository(
        tmp_path, model="m", max_lengths=[64, 128, 512], latency_ms=[1, 2, 5], dynamic=True
    )
    assert [[point.length for point in runtime.latency] for runtime in written.runtimes] == [
        [64],
        [64, 128],
        [64, 128, 512],
    ]
    assert "dynamic_batching" not in (tmp_path / "m_len64" / "config.pbtxt").read_text()


def test_runtimes_of_different_kinds_in_one_repository(tmp_path: Path) -> None:
    points = (LatencyPoint(length=64, batch=1, latency_us=10),)
    runtimes = [
        EmulatedRuntime(name=name, max_length=length, max_batch=1, dynamic=dynamic, latency=points)
        for name, length, dynamic in (("b", 128, True), ("a", 64, False))
    ]
    manifest = write_runtimes(tmp_path, model="m", runtimes=runtimes)
    assert [(runtime.name, runtime.dynamic) for runtime in manifest.runtimes] == [("a", False), ("b", True)]
    assert "dims: [ -1 ]" in (tmp_path / "b" / "config.pbtxt").read_text()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"latency_ms": [1.0]}, "as many latencies"),
        ({"max_lengths": [], "latency_ms": []}, "at least one"),
        ({"max_lengths": [128, 64]}, "must ascend"),
        ({"max_lengths": [0, 64]}, "at least 1"),
        ({"latency_ms": [1.0, -1.0]}, "at least 0"),
        ({"max_batch": 0}, "max_batch at least 1"),
        ({"jitter": 1.5}, "jitter"),
        ({"jitter": math.nan}, "jitter"),
        ({"latency_ms": [1.0, math.nan]}, "finite"),
        ({"latency_ms": [1.0, math.inf]}, "finite"),
        ({"latency_ms": [1.0, 1e300]}, "latency of"),
        ({"batch_growth": math.nan}, "finite"),
        ({"model": "../../x"}, "cannot name a model"),
        ({"model": ""}, "cannot name a model"),
        ({"model": "n" * 300}, "cannot name a model"),
    ],
)
def test_values_that_make_no_sense(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    arguments: dict[str, Any] = {"model": "m", "max_lengths": [64, 128], "latency_ms": [1.0, 2.0], **changed}
    with pytest.raises(ConfigError, match=reason):
        write_emulated_repository(tmp_path, **arguments)
    assert not list(tmp_path.iterdir())
