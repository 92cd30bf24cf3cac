"""Model code in a worker whose Python has NumPy 2, on the real Triton: the answers are those of NumPy 1."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton

from arlo.compile.engines.interface import EngineSettings
from arlo.compile.engines.onnxruntime import OnnxRuntimeEngine
from arlo.compile.repository.triton_config import config_text, model_code
from arlo.compile.spec import RuntimeSpec
from arlo.workers.ports import free_port
from arlo.workers.triton import alone
from tests.fakes import tiny_graph

pytestmark = [pytest.mark.integration, pytest.mark.long]

NUMPY2 = Path(__file__).resolve().parents[3] / "build" / "numpy2"
KINDS = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
}
KIND_OF = {np.dtype(dtype): kind for kind, dtype in KINDS.items()}
FORMS = ("same", "turned", "fixed", "column", "none")
ECHO = """
import numpy as np
import triton_python_backend_utils as pb_utils
from .tensors import from_triton, to_triton

def forms(name, array):
    fixed = array + array
    fixed.flags.writeable = False
    yield to_triton(name + "_same", array)
    yield to_triton(name + "_turned", array.T[::-1])
    yield to_triton(name + "_fixed", fixed)
    yield to_triton(name + "_column", array[0][:, None])
    yield to_triton(name + "_none", array[:0])

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = [from_triton(pb_utils.get_input_tensor_by_name(request, name)) for name in KINDS]
        tensors = [tensor for name, array in zip(KINDS, given) for tensor in forms(name, array)]
        release = int(np.__version__.split(".")[0])
        try:
            to_triton("text", np.array([b"text"], object))
            refused = 0
        except TypeError as error:
            refused = int("install numpy<2" in str(error))
        return pb_utils.InferenceResponse([*tensors, to_triton("facts", np.array([[release, refused]]))])
"""


def write_echo(folder: Path) -> None:
    """A model that answers with what it was given, in arrays of several forms."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(f"KINDS = {list(KINDS)}\n{ECHO}")
    (tensors,) = (path for path in model_code("onnxruntime") if path.name == "tensors.py")
    shutil.copyfile(tensors, folder / "1" / "tensors.py")
    line = '{kind} [ {{ name: "{name}" data_type: TYPE_{type} dims: [ -1, -1 ] }} ]\n'
    text = 'backend: "python"\ninstance_group [ { count: 1 kind: KIND_CPU } ]\n'
    text += line.format(kind="output", name="facts", type="INT64")
    for kind in KINDS:
        text += line.format(kind="input", name=kind, type=kind)
        text += "".join(line.format(kind="output", name=f"{kind}_{form}", type=kind) for form in FORMS)
    (folder / "config.pbtxt").write_text(text)


def write_tiny(folder: Path) -> None:
    """A runtime of the onnxruntime engine, as `arlo compile` writes it."""
    spec = RuntimeSpec(name="tiny", max_length=16, max_batch=8, shape="dynamic")
    (folder / "1").mkdir(parents=True)
    tiny_graph.write_graph(folder / "1", spec)
    for path in model_code("onnxruntime"):
        shutil.copyfile(path, folder / "1" / path.name)
    serving = OnnxRuntimeEngine(EngineSettings()).serving(spec)
    text = config_text(serving, spec, inputs=tiny_graph.INPUTS, outputs=tiny_graph.OUTPUTS, batcher=True)
    (folder / "config.pbtxt").write_text(text)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The two models."""
    if not (NUMPY2 / ".stamp").exists():
        pytest.skip("NumPy 2 is not installed: make build/numpy2/.stamp")
    write_echo(tmp_path / "models" / "echo")
    write_tiny(tmp_path / "models" / "tiny")
    return tmp_path / "models"


async def ask(client: Any, model: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    inputs = []
    for name, array in tensors.items():
        tensor = triton.InferInput(name, array.shape, KIND_OF[array.dtype])
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    result = await client.infer(model, inputs)
    return {f"{model}.{output.name}": result.as_numpy(output.name) for output in result.get_response().outputs}


async def answers_of(repository: Path, log: Path) -> dict[str, Any]:
    """The answers of all models on one Triton. Requests of one length meet in a batch."""
    server = alone.LoneTriton(repository, grpc_port=free_port("127.0.0.1"), http_port=None, log=log)
    async with server as served:
        client = triton.InferenceServerClient(served.endpoint)
        found = await ask(client, "echo", {kind: example(dtype) for kind, dtype in KINDS.items()})
        requests = [tiny_graph.rows_of(rows, tokens, real=tokens - 1) for rows, tokens in [(1, 7), (3, 16), (8, 12)]]
        requests += [tiny_graph.rows_of(2, 9, real=real) for real in range(1, 9)]
        for number, answer in enumerate(await asyncio.gather(*(ask(client, "tiny", each) for each in requests))):
            found |= {f"{name} {number}": array for name, array in answer.items()}
            for name, wanted in tiny_graph.expected(requests[number]).items():
                np.testing.assert_allclose(answer[f"tiny.{name}"], wanted, atol=1e-5)
        await client.close()
    return found


def example(dtype: Any) -> Any:
    return (np.arange(12).reshape(3, 4) % 5 > 1) if dtype is np.bool_ else np.arange(12, dtype=dtype).reshape(3, 4) + 1


async def test_the_answers_of_numpy_2_are_those_of_numpy_1(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await answers_of(repository, tmp_path / "one.log")
    usual = alone.environment

    def environment(*args: Any, **kwargs: Any) -> dict[str, str]:
        """The worker finds its packages by the `python3` on its PATH."""
        env = usual(*args, **kwargs)
        return env | {"PATH": f"{NUMPY2 / 'bin'}:{env['PATH']}"}

    monkeypatch.setattr(alone, "environment", environment)
    two = await answers_of(repository, tmp_path / "two.log")
    assert (one.pop("echo.facts").tolist(), two.pop("echo.facts").tolist()) == ([[1, 0]], [[2, 1]])
    assert one.keys() == two.keys()
    for name, wanted in one.items():
        assert two[name].dtype == wanted.dtype
        np.testing.assert_array_equal(two[name], wanted, err_msg=name)
    for kind, dtype in KINDS.items():
        given = example(dtype)
        forms = (given, given.T[::-1], given + given, given[0][:, None], given[:0])
        for form, wanted in zip(FORMS, forms, strict=True):
            np.testing.assert_array_equal(two[f"echo.{kind}_{form}"], wanted)
    assert "PyCapsule" not in (tmp_path / "two.log").read_text()
