"""What is written for Triton, read, loaded and served by the real one: shapes, batches, precisions."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton
from google.protobuf import text_format
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2 as messages
from tritonclient.utils import InferenceServerException

from arlo.compile.cache import Cache, Hasher
from arlo.compile.engines.interface import EngineSettings, Serving, get_engine
from arlo.compile.engines.onnxruntime import OnnxRuntimeEngine
from arlo.compile.repository.triton_config import config_text, model_code
from arlo.compile.spec import RuntimeSpec
from arlo.compile.steps.repository import RepositoryWriter
from arlo.errors import WorkerError
from arlo.workers import LocalPool
from arlo.workers.triton.server import has_gpu
from tests.fakes import tiny_graph

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

TENSORRT = get_engine("tensorrt", EngineSettings(device="cuda", backend="native"))
TOLERANCE = {"fp32": 1e-5, "fp16": 5e-3}
SERVED = {
    f"{precision}_{shape}_{batch}": (precision, RuntimeSpec(name="", max_length=16, max_batch=batch, shape=shape))
    for precision, shape, batch in [
        ("fp32", "static", 1), ("fp32", "dynamic", 1), ("fp32", "static", 4), ("fp32", "dynamic", 4),
        ("fp16", "static", 1), ("fp16", "static", 4), ("fp16", "dynamic", 4),
    ]
}  # fmt: skip


LIKE_NATIVE = {
    f"like_native_{shape}_{batch}": RuntimeSpec(name="", max_length=16, max_batch=batch, shape=shape)
    for shape, batch in [("static", 1), ("static", 4), ("dynamic", 1), ("dynamic", 4)]
}


class Writer:
    """Builds tiny engines and writes them as `arlo compile` does."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.out.mkdir()
        self._folder = folder
        self._hasher = Hasher()
        self._cache = Cache(folder / "cache", self._hasher)
        self._writer = RepositoryWriter(self.out, self._hasher)

    def add(
        self,
        name: str,
        spec: RuntimeSpec,
        settings: EngineSettings,
        serving: Serving | None = None,
        *,
        change: Callable[[str], str] = str,
        template: str = "",
        **options: Any,
    ) -> None:
        spec = dataclasses.replace(spec, name=name)
        graph, weights = tiny_graph.write_graph(self._folder / name, spec, precision=settings.precision)
        engine = OnnxRuntimeEngine(settings)
        built = self._cache.step(
            "build", {"name": name}, lambda folder: engine.build(graph, weights, spec, folder, scratch=folder)
        )
        serving = serving or engine.serving(spec)
        text = config_text(serving, spec, inputs=tiny_graph.INPUTS, outputs=tiny_graph.OUTPUTS, **options)
        self._writer.model(name, change(text), model_code(template or serving.template), built)


def as_python(text: str) -> str:
    """What was written for a back-end of Triton's own on the CPU, served by our code: all that Triton's core does with
    it, fixed rows and warm-up too, is then done for real."""
    config = text_format.Parse(text, messages.ModelConfig())
    config.backend, config.platform = "python", ""
    return str(text_format.MessageToString(config))


def native_cases() -> dict[str, tuple[RuntimeSpec, EngineSettings, Serving | None]]:
    """What needs back-ends or a GPU that are not here; Triton still reads their configurations."""
    cases: dict[str, tuple[RuntimeSpec, EngineSettings, Serving | None]] = {}
    for shape, batch in (("static", 1), ("static", 4), ("dynamic", 4)):
        spec: Any = RuntimeSpec(name="", max_length=16, max_batch=batch, shape=shape)  # type: ignore[arg-type]
        for device in ("cpu", "cuda"):
            settings: Any = EngineSettings(device=device, backend="native")  # type: ignore[arg-type]
            cases[f"onnxruntime_{device}_{shape}_{batch}"] = (spec, settings, None)
        cases[f"tensorrt_{shape}_{batch}"] = (spec, EngineSettings(device="cuda"), TENSORRT.serving(spec))
        cases[f"python_cuda_{shape}_{batch}"] = (spec, EngineSettings(device="cuda"), None)
    spec = RuntimeSpec(name="", max_length=16, max_batch=4, shape="profiles", profiles=(8, 16))
    cases["tensorrt_profiles_4"] = (spec, EngineSettings(device="cuda"), TENSORRT.serving(spec))
    return cases


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalPool]:
    folder = tmp_path_factory.mktemp("configs")
    writer = Writer(folder)
    for name, (precision, spec) in SERVED.items():
        settings: Any = EngineSettings(precision=precision)  # type: ignore[arg-type]
        writer.add(name, spec, settings, threads=1, batcher=True)
    for name, case in native_cases().items():
        writer.add(name, *case)
    for name, spec in LIKE_NATIVE.items():
        settings = EngineSettings(backend="native")
        writer.add(name, spec, settings, change=as_python, template="onnxruntime")
    async with LocalPool(writer.out, workers=1, run_dir=folder / "run", threads=1, metrics=False) as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(pool: LocalPool) -> AsyncIterator[Any]:
    async with triton.InferenceServerClient((await pool.workers())[0].endpoint) as client:
        yield client


async def infer(client: Any, model: str, given: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[Any]]:
    inputs = []
    for name, array in given.items():
        tensor = triton.InferInput(name, array.shape, "INT64")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    result = await client.infer(model, inputs)
    return {output.name: result.as_numpy(output.name) for output in tiny_graph.OUTPUTS}


@pytest.mark.parametrize("name", SERVED)
async def test_it_is_loaded_and_gives_the_right_answers(pool: LocalPool, client: Any, name: str) -> None:
    precision, spec = SERVED[name]
    await pool.load("w0", name)
    for tokens in (5, 16) if spec.dynamic else (16,):
        given = tiny_graph.rows_of(spec.max_batch, tokens, real=4)
        got = await infer(client, name, given)
        for output, wanted in tiny_graph.expected(given).items():
            assert got[output].shape == wanted.shape
            np.testing.assert_allclose(got[output], wanted, atol=TOLERANCE[precision])
    singles = [tiny_graph.rows_of(1, 16, real=real) for real in range(3, 15)]
    for given, got in zip(
        singles, await asyncio.gather(*(infer(client, name, given) for given in singles)), strict=True
    ):
        wanted = tiny_graph.expected(given)["sentence_embedding"]
        np.testing.assert_allclose(got["sentence_embedding"], wanted, atol=TOLERANCE[precision])
    await pool.unload("w0", name)


@pytest.mark.parametrize("name", LIKE_NATIVE)
async def test_fixed_rows_and_warm_up_are_what_triton_understands(pool: LocalPool, client: Any, name: str) -> None:
    spec = LIKE_NATIVE[name]
    await pool.load("w0", name)
    config = (await client.get_model_config(name)).config
    assert [sample.batch_size for sample in config.model_warmup] == sorted({1, spec.max_batch})
    assert config.max_batch_size == (0 if name == "like_native_static_1" else spec.max_batch)
    given = tiny_graph.rows_of(spec.max_batch, 16, real=4)
    given["token_type_ids"] = np.zeros_like(given["input_ids"])
    got = await infer(client, name, given)
    for output, wanted in tiny_graph.expected(given).items():
        np.testing.assert_allclose(got[output], wanted, atol=1e-5)
    del given["token_type_ids"]
    with pytest.raises(InferenceServerException, match="expected 3 inputs but got 2"):
        await infer(client, name, given)
    await pool.unload("w0", name)


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
@pytest.mark.parametrize("name", native_cases())
async def test_triton_reads_what_is_for_other_machines_and_misses_only_the_machine(pool: LocalPool, name: str) -> None:
    with pytest.raises(WorkerError) as error:
        await pool.load("w0", name)
    assert any(
        missing in str(error.value)
        for missing in (
            "unable to find backend library for backend 'onnxruntime'",
            "unable to find backend library for backend 'tensorrt'",
            "has kind KIND_GPU but",
        )
    ), str(error.value)
