"""TensorRT engines on a GPU, against ONNX Runtime on the CPU: every shape, CUDA graphs, profiles, the model code."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "arlo.compile", reason="engines of TensorRT are built by arlo-serve[compile], which is not installed"
)

from arlo.compile.cache import Cache, Hasher
from arlo.compile.engines.interface import EngineSettings, Precision
from arlo.compile.engines.tensorrt import TensorRtEngine
from arlo.compile.engines.tensorrt_build import PLAN
from arlo.compile.options import CompileOptions
from arlo.compile.spec import GRAPH, WEIGHTS, RuntimeSpec
from arlo.compile.steps.cleanup import cleanup_step
from arlo.compile.steps.export import export_step
from arlo.compile.steps.resolve import resolve
from arlo.compile.steps.specialise import specialise
from arlo.errors import ConfigError, EnvironmentProblem
from tests.fakes.tiny_model import VOCABULARY, write_tiny

OUTPUTS = ("sentence_embedding", "last_hidden_state")
TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}
STATIC = RuntimeSpec(name="m", max_length=16, max_batch=1, shape="static")
BATCHED = RuntimeSpec(name="m", max_length=16, max_batch=4, shape="static")
DYNAMIC = RuntimeSpec(name="m", max_length=48, max_batch=2, shape="dynamic")
SEVERAL = RuntimeSpec(name="m", max_length=48, max_batch=2, shape="profiles", profiles=(16, 32, 48))


class Built:
    """Engines of one tiny model, built when first asked for."""

    def __init__(self, root: Path, package: str) -> None:
        self.package, self._root = package, root
        self._hasher = Hasher()
        self._cache = Cache(root / "cache", self._hasher)
        source = write_tiny(root / "tiny", pooling={"pooling_mode_mean_tokens": True})
        self._model = resolve(CompileOptions(source=source, out=root / "out", lengths=(16,)), self._hasher)

    def engine(self, precision: Precision) -> TensorRtEngine:
        capabilities = ("current",) if self.package == "tensorrt-rtx" else ()
        return TensorRtEngine(self.package, EngineSettings(precision=precision, compute_capabilities=capabilities))

    def graph(self, precision: Precision) -> Path:
        folder: Path = cleanup_step(self._cache, export_step(self._cache, self._model, precision)).folder
        return folder

    def folder(self, spec: RuntimeSpec, precision: Precision = "fp32") -> Path:
        folder = self._root / f"{spec.shape}-{spec.max_batch}-{precision}"
        if not folder.exists():
            graph = folder / "graph"
            graph.mkdir(parents=True)
            source = self.graph(precision)
            specialise(source, spec.fixed, graph)
            engine = self.engine(precision)
            engine.build(graph / GRAPH, source / WEIGHTS, spec, folder, scratch=self._root)
            shutil.rmtree(graph)
        return folder

    def expected(self, inputs: dict[str, Any]) -> dict[str, Any]:
        import onnxruntime

        folder = self._root / "reference"
        if not folder.exists():
            folder.mkdir()
            for name in (GRAPH, WEIGHTS):
                shutil.copyfile(self.graph("fp32") / name, folder / name)
        session = onnxruntime.InferenceSession(str(folder / GRAPH), providers=["CPUExecutionProvider"])
        return dict(zip(OUTPUTS, session.run(list(OUTPUTS), inputs), strict=True))


@pytest.fixture(scope="module", params=["tensorrt-rtx", "tensorrt"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    root = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARLO_CACHE", str(root / "arlo"))
        capabilities = ("current",) if request.param == "tensorrt-rtx" else ()
        try:
            engine = TensorRtEngine(request.param, EngineSettings(compute_capabilities=capabilities))
            engine.versions()
        except (ConfigError, EnvironmentProblem) as error:
            pytest.skip(str(error))
        yield Built(root, request.param)


def inputs(rows: int, tokens: int, seed: int = 0) -> dict[str, Any]:
    """Random ids; of the second row and on, the last third is padding."""
    random = np.random.default_rng([rows, tokens, seed])
    ids = random.integers(5, VOCABULARY, (rows, tokens))
    mask = np.ones_like(ids)
    cut = tokens - tokens // 3
    ids[1:, cut:], mask[1:, cut:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(
    ("spec", "shapes"),
    [
        (STATIC, [(1, 16)]),
        (BATCHED, [(1, 16), (2, 16), (3, 16), (4, 16)]),
        (DYNAMIC, [(1, 1), (1, 7), (2, 16), (2, 48), (1, 33)]),
        (SEVERAL, [(1, 1), (1, 16), (2, 17), (2, 32), (1, 33), (2, 48)]),
    ],
    ids=["static", "batched", "dynamic", "profiles"],
)
def test_the_answers_are_those_of_onnx_runtime(
    built: Built, spec: RuntimeSpec, shapes: list[tuple[int, int]], precision: Precision
) -> None:
    runner = built.engine(precision).open(built.folder(spec, precision), spec, threads=1)
    for seed in range(3):  # plain, captured, replayed
        for rows, tokens in shapes:
            given = inputs(rows, tokens, seed)
            expected, answers = built.expected(given), runner.run(given, OUTPUTS)
            real = given["attention_mask"].astype(bool)
            for name in OUTPUTS:
                difference = np.abs(answers[name] - expected[name])
                worst = (difference[real] if name == "last_hidden_state" else difference).max()
                assert worst <= TOLERANCE[precision], (name, rows, tokens, seed)


def test_cuda_graphs_are_captured_and_change_nothing(built: Built) -> None:
    from arlo.templates.tensorrt.session import Session

    path = built.folder(BATCHED) / PLAN
    plain, fast = (Session(path, built.package, max_graphs=count) for count in (0, 128))
    for seed in range(4):
        for rows in (1, 4, 2):
            given = inputs(rows, 16, seed)
            for left, right in zip(plain.run(OUTPUTS, given), fast.run(OUTPUTS, given), strict=True):
                np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    assert fast.note == ""
    if built.package == "tensorrt":  # TensorRT-RTX captures by itself
        assert set(fast.graphs) == {(1, 16), (2, 16), (4, 16)}


def test_memory_is_given_back(built: Built) -> None:
    from cuda.bindings import runtime

    from arlo.templates.tensorrt.session import Session

    path = built.folder(DYNAMIC) / PLAN

    def free_bytes() -> int:
        error, free, _ = runtime.cudaMemGetInfo()
        assert int(error) == 0
        return int(free)

    for _ in range(2):  # what CUDA and TensorRT keep for good
        session = Session(path, built.package)
        session.warm_up()
        del session
    before = free_bytes()
    for _ in range(5):
        session = Session(path, built.package)
        session.warm_up()
        del session
    assert before - free_bytes() < 16 << 20


def test_kernels_of_rtx_are_kept(built: Built, tmp_path: Path) -> None:
    if built.package != "tensorrt-rtx":
        pytest.skip("TensorRT compiles nothing when it opens an engine")
    from arlo.templates.tensorrt.session import Session

    for _ in range(2):
        session = Session(built.folder(STATIC) / PLAN, built.package, kernels=tmp_path)
        session.warm_up()
        del session
        (file,) = tmp_path.iterdir()
        assert file.stat().st_size > 0


def test_a_timing_cache_is_reused(built: Built, tmp_path: Path) -> None:
    if built.package != "tensorrt":
        pytest.skip("TensorRT-RTX has none")
    source, engine = built.graph("fp32"), built.engine("fp32")
    states = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        specialise(source, STATIC.fixed, folder)
        meta = engine.build(folder / GRAPH, source / WEIGHTS, STATIC, folder, scratch=tmp_path)
        states.append(meta["timing_cache"])
    assert states == ["new", "reused"]
