"""config.pbtxt for every engine, back-end, shape and batch, read back by Triton's own message class.

The rules that are checked were read in the sources of Triton's core and of its back-ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as messages

from arlo.compile.cache import Cache, Hasher
from arlo.compile.engines.interface import EngineSettings, get_engine
from arlo.compile.engines.onnxruntime import OnnxRuntimeEngine
from arlo.compile.repository.triton_config import config_text, graph_batches, model_code
from arlo.compile.spec import GRAPH, WEIGHTS, RuntimeSpec, Shape
from arlo.compile.steps.repository import RepositoryWriter
from arlo.errors import EnvironmentProblem
from tests.fakes import tiny_graph

PROFILES = (16, 32, 64)


ENGINES: dict[str, Any] = {
    "onnxruntime-cpu-python": ("onnxruntime", {}),
    "onnxruntime-cpu-native": ("onnxruntime", {"backend": "native"}),
    "onnxruntime-cuda-python": ("onnxruntime", {"device": "cuda"}),
    "onnxruntime-cuda-native": ("onnxruntime", {"device": "cuda", "backend": "native"}),
    "tensorrt-python": ("tensorrt", {"device": "cuda"}),
    "tensorrt-native": ("tensorrt", {"device": "cuda", "backend": "native"}),
    "tensorrt-rtx-python": ("tensorrt-rtx", {"device": "cuda"}),
}
CASES = [
    pytest.param(name, shape, batch, id=f"{name}-{shape}-{batch}")
    for name in ENGINES
    for shape in (("static", "dynamic", "profiles") if name.startswith("tensorrt") else ("static", "dynamic"))
    for batch in (1, 4)
]


def make(name: str, shape: Shape, batch: int, **change: Any) -> tuple[Any, RuntimeSpec]:
    """The configuration as Triton reads it."""
    profiles = PROFILES if shape == "profiles" else ()
    spec = RuntimeSpec(name="m", max_length=64, max_batch=batch, shape=shape, profiles=profiles)
    engine, settings = ENGINES[name]
    serving = get_engine(engine, EngineSettings(**settings)).serving(spec)
    text = config_text(serving, spec, inputs=tiny_graph.INPUTS, outputs=tiny_graph.OUTPUTS, **change)
    return text_format.Parse(text, messages.ModelConfig()), spec


@pytest.mark.parametrize(("name", "shape", "batch"), CASES)
def test_triton_reads_it_and_finds_it_consistent(name: str, shape: Shape, batch: int) -> None:
    config, spec = make(name, shape, batch)
    native = config.backend != "python"
    assert config.name == "m"
    assert (
        config.platform
        == {"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan", "python": ""}[config.backend]
    )
    # An engine's first axis is free unless its rows are fixed; only then Triton's back-ends take a max_batch_size.
    free_rows = not native or "rows" not in spec.fixed
    assert config.max_batch_size == (batch if free_rows else 0)
    rows = [] if free_rows else [1]
    tokens = 64 if shape == "static" else -1
    assert [(i.name, list(i.dims)) for i in config.input] == [(t.name, [*rows, tokens]) for t in tiny_graph.INPUTS]
    assert [list(o.dims) for o in config.output] == [[*rows, tiny_graph.DIM], [*rows, tokens, tiny_graph.DIM]]
    assert all(i.data_type == messages.TYPE_INT64 for i in config.input)
    assert all(o.data_type == messages.TYPE_FP32 for o in config.output)
    # Triton's back-ends refuse optional inputs, at least with batching.
    assert [i.optional for i in config.input] == [False, False, not native]
    (group,) = config.instance_group
    gpu = "cuda" in name or "tensorrt" in name
    assert group.kind == (messages.ModelInstanceGroup.KIND_GPU if gpu else messages.ModelInstanceGroup.KIND_CPU)
    # Triton itself refuses profiles for anything but platform tensorrt_plan; our code opens them all.
    assert list(group.profile) == (["0", "1", "2"] if shape == "profiles" and native else [])
    assert not config.HasField("dynamic_batching")  # the gateway forms batches
    for sample in config.model_warmup:
        assert 1 <= sample.batch_size <= max(1, config.max_batch_size)
        for tensor in config.input:
            entry = sample.inputs[tensor.name]
            assert entry.data_type == tensor.data_type
            assert entry.WhichOneof("input_data_type") == "zero_data"
            assert all(
                size > 0 and allowed in (-1, size) for size, allowed in zip(entry.dims, tensor.dims, strict=True)
            )
    assert bool(config.model_warmup) == native


@pytest.mark.parametrize(
    ("shape", "batch", "samples"),
    [
        ("static", 1, [(1, [1, 64])]),
        ("static", 4, [(1, [64]), (4, [64])]),
        ("dynamic", 4, [(1, [64]), (4, [64])]),
        ("profiles", 1, [(1, [16]), (1, [32]), (1, [64])]),
    ],
)
def test_every_profile_and_the_largest_batch_are_warmed_up(shape: Shape, batch: int, samples: list[Any]) -> None:
    config, _ = make("tensorrt-native", shape, batch)
    assert [(s.batch_size, list(s.inputs["input_ids"].dims)) for s in config.model_warmup] == samples
    assert len({s.name for s in config.model_warmup}) == len(samples)


def test_our_onnxruntime_code_is_told_the_lengths_to_record() -> None:
    config, _ = make("onnxruntime-cuda-python", "profiles", 4)
    assert config.parameters["lengths"].string_value == "16,32,64"
    config, _ = make("onnxruntime-cuda-python", "dynamic", 4)
    assert "lengths" not in config.parameters


def test_tensorrt_records_graphs_of_fixed_shapes_alone() -> None:
    for name, shape, batch in [("tensorrt-native", "dynamic", 4), ("onnxruntime-cuda-native", "static", 4)]:
        config, _ = make(name, shape, batch)  # type: ignore[arg-type]
        assert not config.optimization.HasField("cuda")
    config, _ = make("tensorrt-native", "static", 4)
    assert config.optimization.cuda.graphs
    specs = [(g.batch_size, {n: list(s.dim) for n, s in g.input.items()}) for g in config.optimization.cuda.graph_spec]
    assert specs == [(batch, {t.name: [64] for t in tiny_graph.INPUTS}) for batch in (1, 2, 3, 4)]
    config, _ = make("tensorrt-native", "static", 1)
    (graph,) = config.optimization.cuda.graph_spec
    assert graph.batch_size == 0
    assert {tuple(s.dim) for s in graph.input.values()} == {(1, 64)}


@pytest.mark.parametrize(("most", "batches"), [(0, [0]), (1, [1]), (3, [1, 2, 3]), (20, [*range(1, 9), 16, 20])])
def test_graph_batches(most: int, batches: list[int]) -> None:
    assert graph_batches(most) == batches


def test_options_of_onnx_runtime_go_where_its_backend_reads_them() -> None:
    config, _ = make("onnxruntime-cuda-native", "static", 4, threads=3)
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (accelerator.name, dict(accelerator.parameters)) == ("cuda", {"use_tf32": "0"})
    assert {key: value.string_value for key, value in config.parameters.items()} == {
        "intra_op_thread_count": "3",
        "inter_op_thread_count": "1",
        "arena_extend_strategy": "1",
    }
    config, _ = make("onnxruntime-cpu-native", "static", 4)
    assert config.parameters["intra_op_thread_count"].string_value == "1"  # 0, its default, means all cores
    assert not config.HasField("optimization")
    config, _ = make("onnxruntime-cpu-python", "static", 4)
    assert not config.parameters
    config, _ = make("onnxruntime-cpu-python", "static", 4, threads=2)
    assert {key: value.string_value for key, value in config.parameters.items()} == {"threads": "2"}
    config, _ = make("tensorrt-native", "static", 4, threads=2)
    assert not config.parameters
    assert config.default_model_filename == "model.plan"
    config, _ = make("tensorrt-rtx-python", "static", 4)
    assert {key: value.string_value for key, value in config.parameters.items()} == {"package": "tensorrt-rtx"}


@pytest.mark.parametrize(("name", "shape", "batch"), CASES)
def test_triton_joins_requests_only_when_asked_to(name: str, shape: Shape, batch: int) -> None:
    plain, _ = make(name, shape, batch)
    config, _ = make(name, shape, batch, batcher=True)
    assert config.HasField("dynamic_batching") == (batch > 1)
    # Triton would now and then sleep for 500 ms with a policy.
    assert not config.dynamic_batching.HasField("default_queue_policy")
    config.ClearField("dynamic_batching")
    assert config == plain


def test_model_code_is_a_folder_and_none_for_native_backends() -> None:
    for template in ("onnxruntime", "tensorrt"):
        assert [path.name for path in model_code(template)] == ["batching.py", "model.py", "session.py", "tensors.py"]
    assert model_code("") == ()
    with pytest.raises(EnvironmentProblem, match="install Arlo again"):
        model_code("unknown")


def test_a_repository_holds_all_code_or_none_and_shares_the_weights(tmp_path: Path) -> None:
    spec = RuntimeSpec(name="m", max_length=16, max_batch=1, shape="static")
    graph, weights = tiny_graph.write_graph(tmp_path / "source", spec)
    engine, hasher = OnnxRuntimeEngine(EngineSettings()), Hasher()
    cache = Cache(tmp_path / "cache", hasher)
    entry = cache.step("build", {"a": 1}, lambda folder: engine.build(graph, weights, spec, folder, scratch=tmp_path))
    out = tmp_path / "out"
    out.mkdir()
    writer = RepositoryWriter(out, hasher)
    ours = writer.model("ours", "# ours\n", model_code("onnxruntime"), entry)
    native = writer.model("native", "# native\n", model_code(""), entry)
    files = (
        "1/batching.py",
        "1/model.onnx",
        "1/model.py",
        "1/session.py",
        "1/tensors.py",
        "1/weights.bin",
        "config.pbtxt",
    )
    assert sorted(ours) == [f"ours/{name}" for name in files]
    assert sorted(native) == ["native/1/model.onnx", "native/1/weights.bin", "native/config.pbtxt"]
    for path, digest in (ours | native).items():
        assert Hasher().file(out / path) == digest
    shared = {(out / name / "1" / WEIGHTS).stat().st_ino for name in ("ours", "native")}
    assert shared == {(entry.folder / WEIGHTS).stat().st_ino}
    assert (out / "native" / "1" / GRAPH).stat().st_nlink > 1
    writer.file(out / "native" / "config.pbtxt", "reference.npz")
    assert (out / "reference.npz").read_text() == "# native\n"
