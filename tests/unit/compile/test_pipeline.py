"""Whole builds of tiny models: what is written, how exact it is, what is taken from the cache."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import itertools
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as triton

import arlo.compile.runtime
import arlo.compile.steps.latency
from arlo.catalog.manifest import Manifest
from arlo.compile import CompileOptions, Progress, compile_model
from arlo.compile.engines.onnxruntime import OnnxRuntimeEngine
from arlo.compile.pipeline import collected
from arlo.compile.repository.inspect import bundle_memory_mb, inspect_repository
from arlo.errors import CompileError
from tests.fakes.tiny_model import DIM
from tests.unit.compile.conftest import FirstBuild


def config_of(repository: Path, name: str) -> Any:
    """config.pbtxt, read with Triton's own message class; an unknown field is an error."""
    return text_format.Parse((repository / name / "config.pbtxt").read_text(), triton.ModelConfig())


def cached_steps(events: list[Progress]) -> set[tuple[str, str]]:
    return {(event.step, event.title) for event in events if event.done and event.cached}


def test_the_manifest_describes_the_repository(first_build: FirstBuild) -> None:
    out, tiny_build = first_build.options.out, first_build.manifest
    assert Manifest.load(out) == tiny_build
    assert (tiny_build.model, tiny_build.task, tiny_build.tokenizer) == ("tiny", "embedding", "tokenizer.json")
    assert [(t.name, t.role, t.optional) for t in tiny_build.inputs] == [
        ("input_ids", "ids", False),
        ("attention_mask", "mask", False),
        ("token_type_ids", "other", True),
    ]
    assert [(t.name, t.dims, t.token_level) for t in tiny_build.outputs] == [
        ("sentence_embedding", (DIM,), False),
        ("last_hidden_state", (DIM,), True),
    ]
    assert [(r.name, r.max_length, r.dynamic) for r in tiny_build.runtimes] == [
        ("tiny_len16", 16, False),
        ("tiny_len32", 32, False),
        ("tiny_dynamic", 32, True),
    ]
    for runtime in tiny_build.runtimes:
        assert runtime.verification is not None
        assert 0 < runtime.verification.max_abs_diff <= 1e-4
        assert runtime.device.startswith("cpu: ")
        assert runtime.device.endswith(", 1 thread")
        assert runtime.memory_mb is None or runtime.memory_mb > 0  # None: too small to be seen
        for path, digest in runtime.files.items():
            assert hashlib.sha256((out / path).read_bytes()).hexdigest() == digest
    assert [[(p.length, p.batch) for p in r.latency] for r in tiny_build.runtimes] == [
        [(16, 1)],
        [(32, 1)],
        [(8, 1), (16, 1), (32, 1)],
    ]
    assert {"torch", "transformers", "onnx", "onnxruntime"} <= tiny_build.tools.keys()
    listed = {path for runtime in tiny_build.runtimes for path in runtime.files} | {"arlo.json", "tokenizer.json"}
    listed.add("reference.npz")
    there = {path.relative_to(out) for path in out.rglob("*") if path.is_file()}
    assert {str(path) for path in there if path.parent.name != "__pycache__"} == listed  # a test that loaded the code


def test_weights_lie_on_the_disk_once(first_build: FirstBuild) -> None:
    out = first_build.options.out
    weights = [out / runtime.name / "1" / "weights.bin" for runtime in first_build.manifest.runtimes]
    assert len({path.stat().st_ino for path in weights}) == 1
    others = [path for path in out.rglob("*") if path.is_file() and path not in weights]
    assert inspect_repository(out).bytes == weights[0].stat().st_size + sum(path.stat().st_size for path in others)


def test_a_second_build_takes_all_from_the_cache(first_build: FirstBuild, tiny_options: CompileOptions) -> None:
    again: list[Progress] = []
    assert compile_model(tiny_options, again.append) == first_build.manifest
    assert cached_steps(first_build.events) == set()
    assert {step for step, _ in cached_steps(again)} == {
        *("tokenizer", "export", "cleanup", "reference", "specialise", "build", "verify", "latency")
    }
    done = [event for event in again if event.done]
    assert len(cached_steps(again)) == len(done) - 2  # resolve and repository only read and link
    assert [event.number for event in done] == list(range(1, done[-1].total + 1))


@pytest.mark.long
def test_an_option_rebuilds_only_what_depends_on_it(tiny_options: CompileOptions) -> None:
    events: list[Progress] = []
    changed = dataclasses.replace(tiny_options, lengths=(16, 24), dynamic=False, threads=2)
    manifest = compile_model(changed, events.append)
    assert cached_steps(events) == {
        ("tokenizer", "tiny"),
        ("export", "tiny"),
        ("cleanup", "tiny"),
        ("specialise", "length 16"),
        ("build", "length 16"),
        ("verify", "length 16"),
    }
    assert manifest.runtimes[0].device.endswith(", 2 threads")
    assert config_of(changed.out, "tiny_len16").parameters["threads"].string_value == "2"


@pytest.mark.long
def test_remeasure_measures_and_takes_the_rest_from_the_cache(tiny_options: CompileOptions) -> None:
    events: list[Progress] = []
    compile_model(dataclasses.replace(tiny_options, remeasure=True), events.append)
    assert {event.step for event in events if event.done and not event.cached} == {"resolve", "latency", "repository"}


def test_a_small_model_is_built_in_this_process(tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started when they are asked for, and for models that are not small."""
    asked, run_all = [], arlo.compile.runtime.run_all

    def recorded(*args: Any, jobs: int, **more: Any) -> list[Any]:
        asked.append(jobs)
        return run_all(*args, jobs=jobs, **more)

    monkeypatch.setattr(arlo.compile.runtime, "run_all", recorded)
    monkeypatch.setattr(arlo.compile.runtime.psutil, "cpu_count", lambda: 2)
    options = dataclasses.replace(tiny_options, lengths=(17, 18), dynamic=False)
    compile_model(options)
    assert asked == []
    monkeypatch.setattr(arlo.compile.runtime, "_SMALL_BYTES", 0)
    manifest = compile_model(dataclasses.replace(options, lengths=(19, 20)))
    assert asked == [2]
    assert all(runtime.verification for runtime in manifest.runtimes)


def test_measuring_memory_leaves_out_what_was_there() -> None:
    """Of collections of garbage; who has it left out already keeps it so."""
    gc.unfreeze()
    with collected():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0
    gc.freeze()
    with collected():
        pass
    assert gc.get_freeze_count() > 1000


def test_the_memory_is_what_opening_and_running_added(
    tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = iter([100_000_000, 152_000_001, 90_000_000, 120_000_000])
    monkeypatch.setattr(OnnxRuntimeEngine, "memory_used", lambda _: next(used))
    options = dataclasses.replace(tiny_options, dynamic=False, remeasure=True)
    monkeypatch.setattr("arlo.compile.pipeline.odd", lambda *_, **__: ())  # nothing is measured twice
    manifest = compile_model(options)
    assert [runtime.memory_mb for runtime in manifest.runtimes] == [53, 30]
    assert bundle_memory_mb(manifest) == 83


def test_memory_that_did_not_grow_is_not_known(tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([2_000_000, 1_000_000, None, None])
    monkeypatch.setattr(OnnxRuntimeEngine, "memory_used", lambda _: next(used))
    monkeypatch.setattr("arlo.compile.pipeline.odd", lambda *_, **__: ())
    manifest = compile_model(dataclasses.replace(tiny_options, dynamic=False, remeasure=True))
    assert [runtime.memory_mb for runtime in manifest.runtimes] == [None, None]


def test_a_damaged_cache_is_not_believed(tiny_options: CompileOptions) -> None:
    cache = tiny_options.cache_root / "compile"
    for graph in (cache / "specialise").glob("*/model.onnx"):
        graph.write_bytes(graph.read_bytes()[:-1])
    for entry in (cache / "verify").glob("*/entry.json"):
        entry.write_text("{")
    events: list[Progress] = []
    compile_model(dataclasses.replace(tiny_options, lengths=(16,), dynamic=False), events.append)
    fresh = {event.step for event in events if event.done and not event.cached}
    assert fresh == {"resolve", "reference", "specialise", "verify", "repository"}  # a reference is of these lengths


@pytest.mark.long
def test_without_the_cache_nothing_is_kept(tiny: Path, tmp_path: Path) -> None:
    options = CompileOptions(
        source=tiny, out=tmp_path / "out", lengths=(16,), use_cache=False, cache=tmp_path / "cache"
    )
    events: list[Progress] = []
    compile_model(options, events.append)
    assert cached_steps(events) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_weights_of_another_task_are_refused(tiny_options: CompileOptions) -> None:
    with pytest.raises(CompileError, match=r"no weights for classifier\.bias.*not trained for sequence-classification"):
        compile_model(dataclasses.replace(tiny_options, task="sequence-classification"))
    assert not tiny_options.out.exists()


@pytest.mark.parametrize(("used", "busy"), [(1.0, False), (0.4, True)])
def test_a_busy_machine_is_said(
    tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch, used: float, busy: bool
) -> None:
    """The clock and the CPU time tick per reading: a process that gets `used` of its core."""
    now = itertools.count()
    monkeypatch.setattr(arlo.compile.steps.latency, "monotonic_s", lambda: next(now) / 1000)
    cpu = itertools.count(step=0.009 * used)  # nine repetitions lie between two readings
    monkeypatch.setattr(arlo.compile.steps.latency, "cpu_s", lambda: next(cpu))
    events: list[Progress] = []
    manifest = compile_model(
        dataclasses.replace(tiny_options, lengths=(16,), dynamic=False, remeasure=True), events.append
    )
    warning = next(event.warning for event in events if event.done and event.step == "latency")
    assert ("the machine was busy" in warning) is busy
    assert manifest.runtimes[0].latency[0].latency_us == 1000


@pytest.mark.long
def test_a_runtime_slower_than_a_longer_one_is_measured_again(
    tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else runs while 16 tokens are measured the first time: 88 ms, where 32 take 75."""
    times_ms = {16: itertools.chain([88.0], itertools.repeat(40.0)), 32: itertools.repeat(75.0)}

    def measure(_runner: Any, inputs: dict[str, Any], _output: str) -> tuple[float, float]:
        width = next(iter(inputs.values())).shape[1]
        return next(times_ms[width]) / 1000, 1.0

    monkeypatch.setattr(arlo.compile.steps.latency, "_measure", measure)
    events: list[Progress] = []
    options = dataclasses.replace(tiny_options, lengths=(16, 32), dynamic=False, remeasure=True)
    manifest = compile_model(options, events.append)
    assert [r.latency[0].latency_us for r in manifest.runtimes] == [40_000, 75_000]
    notes = [event.note for event in events if event.done and event.step == "latency"]
    assert notes == ["88.0 ms", "75.0 ms", "40.0 ms, 88.0 ms before, when something else ran"]
    assert events[-1].number == events[-1].total


def test_odd_points_are_those_above_a_larger_one() -> None:
    flat = {(16, 1): 100.0, (32, 1): 98.0, (64, 1): 200.0}  # within noise
    assert arlo.compile.steps.latency.odd(flat) == []
    assert arlo.compile.steps.latency.odd({**flat, (16, 2): 90.0}) == [(16, 1)]
    assert arlo.compile.steps.latency.odd(flat, longer={(64, 1): 150.0}) == [(64, 1)]
    assert arlo.compile.steps.latency.odd(flat, longer={(128, 1): 90.0}) == [(16, 1), (32, 1), (64, 1)]
