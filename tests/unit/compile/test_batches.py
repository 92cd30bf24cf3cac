"""`--max-batch auto`: what is built for what was measured, and where nothing can be measured."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from rich.console import Console
from tritonclient.grpc import model_config_pb2 as triton

import arlo.compile.steps.batches
import arlo.compile.steps.latency
from arlo.compile import CompileOptions, Progress, compile_model
from arlo.compile.engines.onnxruntime import OnnxRuntimeEngine
from arlo.compile.job import Job
from arlo.compile.pipeline import specs_of
from arlo.compile.repository.inspect import inspect_repository
from arlo.compile.steps.batches import batches_of, batches_step
from arlo.compile.tools.inspect import show
from arlo.errors import ConfigError
from tests.unit.compile.conftest import profile_of

MB = 1_000_000


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 tokens gain up to 4 rows, 32 tokens nothing. Opening takes 50 MB, and each token of a batch 0.1 MB."""
    used = [0]

    def quickest(_runner: Any, inputs: dict[str, Any], _output: str, *, own_time: bool) -> tuple[float, float]:
        rows, tokens = next(iter(inputs.values())).shape
        assert own_time
        used[0] = max(used[0], rows * tokens)
        return (0.001 * rows if tokens == 32 else 0.001 * max(1, rows / 4)), 1.0

    calls = iter([0, 50 * MB])
    monkeypatch.setattr(arlo.compile.steps.batches, "quickest", quickest)
    monkeypatch.setattr(OnnxRuntimeEngine, "memory_used", lambda _: next(calls, 50 * MB + used[0] * MB // 10))
    monkeypatch.setattr(arlo.compile.steps.latency, "_measure", lambda *_: (0.001, 1.0))


@pytest.mark.usefixtures("measured")
def test_each_length_gets_the_batch_that_pays(tiny_options: CompileOptions) -> None:
    events: list[Progress] = []
    options = dataclasses.replace(tiny_options, max_batch="auto", dynamic=False)
    manifest = compile_model(options, events.append)
    assert [(r.max_length, r.max_batch) for r in manifest.runtimes] == [(16, 4), (32, 1)]
    assert [[p.batch for p in r.latency] for r in manifest.runtimes] == [[1, 2, 4], [1]]
    text = (options.out / "tiny_len16" / "config.pbtxt").read_text()
    assert text_format.Parse(text, triton.ModelConfig()).max_batch_size == 4
    assert manifest.options["max_batch"] == "auto"
    assert [(each["length"], each["rows"]) for each in manifest.options["batches"]] == [(16, 4), (32, 1)]
    console = Console(width=200, record=True, file=io.StringIO())
    show(inspect_repository(options.out), None, console)
    why = "a row takes 75% less than alone; 8 would save nothing, and 3% is the least that pays"
    assert f"batches of 16 tokens: up to 4 row(s); {why}" in console.export_text()
    assert [event.note for event in events if event.done and event.step == "batches"] == [
        "4 of 16 tokens, 1 of 32 tokens"
    ]
    assert events[-1].number == events[-1].total


def with_batches(job: Job, **options: Any) -> Job:
    return dataclasses.replace(job, options=dataclasses.replace(job.options, max_batch="auto", **options))


@pytest.mark.usefixtures("measured")
def test_memory_limits_the_batches(job: Job) -> None:
    # Weights 50 MB each; 6.4 MB for 4 rows of 16 tokens, 3.2 MB for one of 32.
    limited = with_batches(job, memory_mb=109)
    entry = batches_step(limited, (16, 32))
    assert (entry.meta["weights_mb"], entry.meta["token_mb"]) == (50, pytest.approx(0.1))
    assert [(choice.length, choice.rows) for choice in batches_of(limited, entry)] == [(16, 2), (32, 1)]
    assert batches_of(limited, entry)[0].why.startswith("4 would save more, and do not fit into 109 MB")
    assert [choice.rows for choice in batches_of(with_batches(job), entry)] == [4, 1]
    with pytest.raises(ConfigError, match="take about 105 MB, more than the 60"):
        batches_of(with_batches(job, memory_mb=60), entry)


def test_a_real_measurement_is_made_once(job: Job) -> None:
    entry = batches_step(with_batches(job), (16, 48))
    assert {(length, rows) for length, rows, _ in entry.meta["points"]} >= {
        (length, rows) for length in (16, 48) for rows in (1, 2, 4)
    }
    assert all(us > 0 for _, _, us in entry.meta["points"])
    assert [choice.length for choice in batches_of(with_batches(job), entry)] == [16, 48]
    assert batches_step(with_batches(job), (16, 48)).cached


def test_a_runtime_of_any_length_takes_the_largest_batch(job: Job) -> None:
    specs = specs_of(with_batches(job).options, "m", (16, 32), {16: 8, 32: 2})
    assert [(spec.name, spec.max_batch) for spec in specs] == [("m_len16", 8), ("m_len32", 2), ("m_dynamic", 8)]


def test_a_latency_profile_says_it_for_another_device(job: Job, tmp_path: Path) -> None:
    profile, single = tmp_path / "profile.json", tmp_path / "single.json"
    profile_of({16: 1600, 32: 3200}, {}, batches=(1, 2, 4, 8)).save(profile)
    profile_of({16: 1600, 32: 3200}, {}).save(single)
    told = with_batches(job, latency_profile=profile)
    entry = batches_step(told, (16, 32))
    assert [choice.rows for choice in batches_of(told, entry)] == [8, 8]
    with pytest.raises(ConfigError, match="no batches to choose from: compile with --max-batch 32"):
        batches_step(with_batches(job, latency_profile=single), (16, 32))
    with pytest.raises(ConfigError, match="leave --memory-mb out"):
        batches_of(with_batches(job, latency_profile=profile, memory_mb=1000), entry)


def test_where_nothing_runs_the_engine_a_number_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnnxRuntimeEngine, "cannot_run", lambda _: "there is no GPU")
    options = CompileOptions(source=tmp_path, out=tmp_path / "out", max_batch="auto", device="cuda")
    with pytest.raises(ConfigError, match="needs a measurement, and there is no GPU: name a number"):
        compile_model(options)
