"""Engines really built by TensorRT-RTX, which needs no GPU for it: shapes, precisions, compute capabilities, errors."""

from __future__ import annotations

import dataclasses
import errno
import io
import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from arlo.compile.cache import Cache, Hasher
from arlo.compile.engines import tensorrt_build
from arlo.compile.engines.interface import EngineSettings
from arlo.compile.engines.tensorrt import TensorRtEngine
from arlo.compile.engines.tensorrt_build import profile_shapes
from arlo.compile.options import CompileOptions
from arlo.compile.spec import GRAPH, WEIGHTS, RuntimeSpec, Shape
from arlo.compile.steps.cleanup import cleanup_step
from arlo.compile.steps.export import export_step
from arlo.compile.steps.resolve import resolve
from arlo.compile.steps.specialise import specialise
from arlo.errors import CompileError

pytest.importorskip("tensorrt_rtx_bindings", reason="the package of tensorrt-rtx is not installed")


def spec(shape: Shape = "static", *, length: int = 16, batch: int = 1, profiles: tuple[int, ...] = ()) -> RuntimeSpec:
    return RuntimeSpec(name="m", max_length=length, max_batch=batch, shape=shape, profiles=profiles)


def engine(**settings: Any) -> TensorRtEngine:
    return TensorRtEngine("tensorrt-rtx", EngineSettings(**{"compute_capabilities": ("SM86",), **settings}))


@pytest.fixture(scope="session")
def exported(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the cleaned graph of a tiny BERT and its weights, with free axes."""
    root = tmp_path_factory.mktemp("exported")
    hasher = Hasher()
    cache = Cache(root / "cache", hasher)
    model = resolve(CompileOptions(source=tiny, out=root / "out", lengths=(16,)), hasher)
    folder: Path = cleanup_step(cache, export_step(cache, model, "fp32")).folder
    return folder


def build(source: Path, runtime: RuntimeSpec, tmp_path: Path, **settings: Any) -> tuple[dict[str, Any], Path]:
    """Specialise as the pipeline does, and build; what the engine says, and its folder."""
    graph, folder = tmp_path / "graph", tmp_path / "built"
    graph.mkdir()
    folder.mkdir()
    specialise(source, runtime.fixed, graph)
    before = (graph / GRAPH).read_bytes(), (source / WEIGHTS).stat()
    meta = engine(**settings).build(graph / GRAPH, source / WEIGHTS, runtime, folder, scratch=tmp_path)
    assert ((graph / GRAPH).read_bytes(), (source / WEIGHTS).stat().st_mtime) == (before[0], before[1].st_mtime)
    assert [path.name for path in folder.iterdir()] == ["model.plan"]
    return meta, folder / "model.plan"


@pytest.mark.long
@pytest.mark.parametrize(
    "runtime",
    [
        spec(),
        spec(batch=4),
        spec("dynamic", length=48, batch=2),
        spec("profiles", length=48, batch=2, profiles=(16, 32, 48)),
    ],
    ids=lambda runtime: f"{runtime.shape}-{runtime.max_batch}",
)
def test_every_shape_is_built(exported: Path, tmp_path: Path, runtime: RuntimeSpec) -> None:
    meta, plan = build(exported, runtime, tmp_path)
    assert plan.stat().st_size == meta["bytes"] > 50_000
    assert meta["layers"] > 50
    assert meta["format"].startswith("tensorrt-rtx 1.")
    assert meta["compute_capabilities"] == ["SM86"]
    assert meta["notes"] == []
    assert meta["timing_cache"] == "none"
    assert meta["seconds"] > 0


@pytest.mark.parametrize("runtime", [spec(batch=4), spec("dynamic", length=48, batch=2)], ids=lambda each: each.shape)
def test_an_input_of_its_own_size_is_built(tmp_path: Path, runtime: RuntimeSpec) -> None:
    """As the `task` of `arlo adapt --data TASK=FILE`; another size is refused."""
    runtime = dataclasses.replace(runtime, tensors=(("task", (1,)),))
    tokens: Any = "tokens" if runtime.dynamic else 16
    graph, weights = small_graph(tmp_path, *TASK, shape=("rows", tokens), task=("rows", 1))
    (tmp_path / "built").mkdir()
    assert engine().build(graph, weights, runtime, tmp_path / "built", scratch=tmp_path)["bytes"]
    graph, weights = small_graph(tmp_path, *TASK, shape=("rows", tokens), task=("rows", 3))
    with pytest.raises(CompileError, match=r"task is INT64 \[-1, 3\], not INT64 \[-1, 1\]"):
        engine().build(graph, weights, runtime, tmp_path / "built", scratch=tmp_path)


def test_profiles_meet_without_gap_or_overlap() -> None:
    assert profile_shapes(spec(batch=8)) == [((1, 16), (8, 16), (8, 16))]
    assert profile_shapes(spec("dynamic", length=48)) == [((1, 1), (1, 48), (1, 48))]
    assert profile_shapes(spec("profiles", length=48, batch=2, profiles=(16, 48))) == [
        ((1, 1), (2, 16), (2, 16)),
        ((1, 17), (2, 48), (2, 48)),
    ]


def small_graph(
    folder: Path,
    *nodes: onnx.NodeProto,
    opset: int = 18,
    shape: tuple[Any, ...] = (1, 16),
    kind: int = TensorProto.INT64,
    out: int = TensorProto.FLOAT,
    task: tuple[Any, ...] | None = None,
) -> tuple[Path, Path]:
    """input_ids -> `f` (FP32, plus a weight that lies in weights.bin) -> the nodes -> `out`."""
    weight = numpy_helper.from_array(np.ones((1, 1), np.float32), "weight")
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["input_ids"], ["cast"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["cast", "weight"], ["f"]),
            *nodes,
        ],
        "small",
        [
            helper.make_tensor_value_info("input_ids", kind, shape),
            *([helper.make_tensor_value_info("task", TensorProto.INT64, task)] if task else []),
        ],
        [helper.make_tensor_value_info("out", out, None)],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 10
    onnx.save(model, str(folder / GRAPH), save_as_external_data=True, location=WEIGHTS, size_threshold=0)
    return folder / GRAPH, folder / WEIGHTS


RELU = helper.make_node("Relu", ["f"], ["out"])
TASK = (
    helper.make_node("Cast", ["task"], ["of"], to=TensorProto.FLOAT),
    helper.make_node("ReduceSum", ["of"], ["sum"], keepdims=1),
    helper.make_node("Add", ["f", "sum"], ["out"]),
)


def build_small(tmp_path: Path, *nodes: onnx.NodeProto, **change: Any) -> dict[str, Any]:
    graph, weights = small_graph(tmp_path, *nodes, **change)
    (tmp_path / "built").mkdir()
    return engine().build(graph, weights, spec(), tmp_path / "built", scratch=tmp_path)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16], ids=["fp16", "bf16"])
def test_the_precision_is_that_of_the_graph(tmp_path: Path, kind: int) -> None:
    half = (
        helper.make_node("Cast", ["f"], ["half"], to=kind),
        helper.make_node("Exp", ["half"], ["exp"]),
        helper.make_node("Cast", ["exp"], ["out"], to=TensorProto.FLOAT),
    )
    assert build_small(tmp_path, *half)["notes"] == []
    narrow = (tmp_path / "built" / "model.plan").read_bytes()
    (tmp_path / "wide").mkdir()
    build_small(tmp_path / "wide", helper.make_node("Exp", ["f"], ["out"]))
    assert narrow != (tmp_path / "wide" / "built" / "model.plan").read_bytes()


def test_the_file_depends_on_the_capabilities_and_on_nothing_else(tmp_path: Path) -> None:
    graph, weights = small_graph(tmp_path, RELU)
    plans = []
    for index, names in enumerate((("SM86",), ("SM86",), ("SM120",), ("SM86", "SM120"))):
        folder = tmp_path / str(index)
        folder.mkdir()
        meta = engine(compute_capabilities=names).build(graph, weights, spec(), folder, scratch=tmp_path)
        assert meta["compute_capabilities"] == list(names)
        plans.append((folder / "model.plan").read_bytes())
    assert plans[0] == plans[1]
    assert len(set(plans)) == 3


def test_weights_with_several_links_are_read_and_those_that_are_missing_are_not(tmp_path: Path) -> None:
    graph, weights = small_graph(tmp_path, RELU)
    os.link(weights, tmp_path / "another name")
    (tmp_path / "built").mkdir()
    assert engine().build(graph, weights, spec(), tmp_path / "built", scratch=tmp_path)["bytes"]
    weights.write_bytes(b"")
    with pytest.raises(CompileError, match="does not take the graph"):
        engine().build(graph, weights, spec(), tmp_path / "built", scratch=tmp_path)


def test_all_refused_operators_are_named(tmp_path: Path) -> None:
    refused = (
        helper.make_node("Bernoulli", ["f"], ["g"], name="dice"),
        helper.make_node("Det", ["g"], ["out"], name="determinant"),
    )
    with pytest.raises(CompileError) as caught:
        build_small(tmp_path, *refused)
    text = str(caught.value)
    assert text.startswith("build: length 16: tensorrt-rtx 1.")
    assert "(opset 18)" in text
    assert "node 2 (dice), operator Bernoulli: this operator is not supported" in text
    assert "node 3 (determinant), operator Det: this operator is not supported" in text
    assert "--engine onnxruntime" in text
    assert list((tmp_path / "built").iterdir()) == []


def test_an_opset_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"the graph is of opset 99, newer than \d+, .* export it with opset 18"):
        build_small(tmp_path, RELU, opset=99)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shape": (1, 20)}, r"the input input_ids is INT64 \[1, 20\], not INT64 \[1, 16\]"),
        ({"shape": ("rows", "tokens")}, r"is INT64 \[-1, -1\], not INT64 \[1, 16\]"),
        ({"kind": TensorProto.INT32}, "the input input_ids is INT32"),
    ],
)
def test_inputs_of_another_kind_are_refused(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    with pytest.raises(CompileError, match=text):
        build_small(tmp_path, RELU, **change)


def test_outputs_of_another_kind_are_refused(tmp_path: Path) -> None:
    half = helper.make_node("Cast", ["f"], ["out"], to=TensorProto.FLOAT16)
    with pytest.raises(CompileError, match="the output out is HALF: let the graph end in FP32"):
        build_small(tmp_path, half, out=TensorProto.FLOAT16)


def test_a_full_disk_is_an_error_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    original = tensorrt_build._writer
    monkeypatch.setattr(tensorrt_build, "_writer", lambda trt, file: original(trt, Full()))
    with pytest.raises(OSError, match="No space left") as caught:
        build_small(tmp_path, RELU)
    assert caught.value.errno == errno.ENOSPC  # the cache tells people what to do


def _build_in_another_process(folder: Path) -> int:
    meta = engine().build(folder / GRAPH, folder / WEIGHTS, spec(), folder / "built", scratch=folder.parent)
    return int(meta["bytes"])


def test_two_processes_build_at_once(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        (folder / "built").mkdir(parents=True)
        small_graph(folder, RELU)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        sizes = pool.map(_build_in_another_process, folders)
    assert [(folder / "built" / "model.plan").stat().st_size for folder in folders] == sizes


def test_the_memory_that_a_build_takes_grows_with_the_weights() -> None:
    bert_base = engine().build_memory(440 << 20)
    assert engine().build_memory(0) < bert_base < 6 << 30
