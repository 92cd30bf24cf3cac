"""The ONNX Runtime back-end: what it builds and opens here, and what it says of a GPU that is not here."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from arlo.compile.engines.interface import EngineSettings, Precision, get_engine
from arlo.compile.engines.onnxruntime import OnnxRuntimeEngine
from arlo.compile.spec import GRAPH, WEIGHTS, RuntimeSpec
from arlo.errors import CompileError, ConfigError
from arlo.workers.triton.server import has_gpu
from tests.fakes import tiny_graph

STATIC = RuntimeSpec(name="tiny_len16", max_length=16, max_batch=1, shape="static")
BATCHED = RuntimeSpec(name="tiny_len16", max_length=16, max_batch=4, shape="static")
DYNAMIC = RuntimeSpec(name="tiny_dynamic", max_length=16, max_batch=4, shape="dynamic")
TOLERANCE = {"fp32": 1e-5, "fp16": 5e-3}


def built(engine: OnnxRuntimeEngine, spec: RuntimeSpec, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of a built engine and what `build` said; graph and weights come from different folders."""
    graph, weights = tiny_graph.write_graph(folder / "graph", spec, precision=engine.settings.precision)
    (folder / "weights").mkdir()
    weights = weights.rename(folder / "weights" / WEIGHTS)
    (folder / "engine").mkdir()
    return folder / "engine", engine.build(graph, weights, spec, folder / "engine", scratch=folder)


def test_memory_is_that_of_this_process() -> None:
    engine = OnnxRuntimeEngine(EngineSettings())
    before = engine.memory_used()
    held = np.ones(64_000_000, np.int8)
    during = engine.memory_used()
    del held
    after = engine.memory_used()
    assert before is not None
    assert during is not None
    assert after is not None
    assert 60_000_000 < during - before < 80_000_000
    assert abs(after - before) < 20_000_000


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("spec", [STATIC, BATCHED, DYNAMIC], ids=["static", "batched", "dynamic"])
def test_it_computes_what_the_graph_says(tmp_path: Path, spec: RuntimeSpec, precision: Precision) -> None:
    engine = OnnxRuntimeEngine(EngineSettings(precision=precision))
    folder, said = built(engine, spec, tmp_path)
    assert said["checked_on"] == "cpu"
    assert said["share"]
    assert (folder / WEIGHTS).stat().st_ino == (tmp_path / "weights" / WEIGHTS).stat().st_ino
    runner = engine.open(folder, spec, threads=1)
    assert (runner.session.graphs, runner.session.note) == ((), "")
    rows = tiny_graph.rows_of(spec.max_batch, 9 if spec.dynamic else 16, real=7) | {
        "token_type_ids": np.zeros((spec.max_batch, 9 if spec.dynamic else 16), np.int64)
    }
    wanted = tiny_graph.expected(rows)
    for names in (["sentence_embedding"], ["last_hidden_state", "sentence_embedding"]):
        got = runner.run(rows, names)
        assert list(got) == names
        for name in names:
            assert got[name].dtype == np.float32
            np.testing.assert_allclose(got[name], wanted[name], atol=TOLERANCE[precision])


def test_the_notes_say_what_a_precision_costs_or_could_not_show(tmp_path: Path) -> None:
    (slow,) = built(OnnxRuntimeEngine(EngineSettings(precision="fp16")), STATIC, tmp_path / "a")[1]["notes"]
    assert "no faster" in slow
    assert built(OnnxRuntimeEngine(EngineSettings()), STATIC, tmp_path / "b")[1]["notes"] == []


def test_bf16_on_the_cpu_is_refused_with_the_ways_out() -> None:
    with pytest.raises(ConfigError, match=r"--precision fp32, or --device cuda"):
        get_engine("onnxruntime", EngineSettings(precision="bf16", device="cpu"))


def test_a_graph_of_another_shape_and_one_that_does_not_open_are_refused(tmp_path: Path) -> None:
    engine = OnnxRuntimeEngine(EngineSettings())
    graph, weights = tiny_graph.write_graph(tmp_path / "graph", BATCHED)
    for name in ("other", "cut"):
        (tmp_path / name).mkdir()
    with pytest.raises(CompileError, match=r"length 16: input_ids has shape \['rows', 16\], not \[1, 16\]"):
        engine.build(graph, weights, STATIC, tmp_path / "other", scratch=tmp_path)
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CompileError, match="ONNX Runtime does not open length 16"):
        engine.build(graph, weights, BATCHED, tmp_path / "cut", scratch=tmp_path)


def test_it_can_be_pickled_and_names_its_package() -> None:
    engine = OnnxRuntimeEngine(EngineSettings(precision="fp16", device="cuda"))
    assert pickle.loads(pickle.dumps(engine)).settings == engine.settings
    (package,) = engine.versions()
    assert package in ("onnxruntime", "onnxruntime-gpu")
    assert OnnxRuntimeEngine(EngineSettings()).device().startswith("cpu: ")
    assert OnnxRuntimeEngine(EngineSettings()).cannot_run() == ""


def test_the_key_parts_what_was_checked_differently() -> None:
    settings = [EngineSettings(), EngineSettings(device="cuda"), EngineSettings(precision="fp16", device="cuda")]
    keys = [str(OnnxRuntimeEngine(one).key()) for one in settings]
    assert len(set(keys)) == len(keys)


def test_triton_serves_it_by_our_code_or_by_its_own_backend() -> None:
    def serving(**change: Any) -> Any:
        return OnnxRuntimeEngine(EngineSettings(**change)).serving(STATIC)

    assert (serving().backend, serving().template, serving().gpu) == ("python", "onnxruntime", False)
    assert serving(device="cuda").gpu
    native = serving(backend="native", device="cuda")
    assert (native.backend, native.platform, native.template) == ("onnxruntime", "onnxruntime_onnx", "")
    assert native.accelerator == {"use_tf32": "0"}
    assert serving(backend="native").accelerator == {}


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
def test_without_a_gpu_it_builds_for_one_and_says_that_it_cannot_run(tmp_path: Path) -> None:
    engine = OnnxRuntimeEngine(EngineSettings(device="cuda", precision="fp16"))
    assert "no NVIDIA GPU driver" in engine.cannot_run()
    folder, said = built(engine, STATIC, tmp_path / "fp16")
    assert (said["checked_on"], said["notes"]) == ("cpu", [])
    with pytest.raises(CompileError, match="length 16 cannot run here: there is no NVIDIA GPU driver"):
        engine.open(folder, STATIC, threads=1)
    folder, said = built(OnnxRuntimeEngine(EngineSettings(device="cuda", precision="bf16")), BATCHED, tmp_path / "bf16")
    assert said["checked_on"] == ""
    assert "bf16" in said["notes"][0]
    assert sorted(path.name for path in folder.iterdir()) == [GRAPH, WEIGHTS]
    other = OnnxRuntimeEngine(EngineSettings(device="cuda", precision="bf16"))
    (tmp_path / "other").mkdir()
    graph, weights = tiny_graph.write_graph(tmp_path / "g", BATCHED, precision="bf16")
    with pytest.raises(CompileError, match="has shape"):
        other.build(graph, weights, STATIC, tmp_path / "other", scratch=tmp_path)


def test_a_gpu_package_without_a_gpu_build_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arlo.workers.triton.server.has_gpu", lambda: True)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    assert "onnxruntime-gpu" in OnnxRuntimeEngine(EngineSettings(device="cuda")).cannot_run()
