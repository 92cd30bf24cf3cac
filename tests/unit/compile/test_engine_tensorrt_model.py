"""The model code for TensorRT engines, outside Triton, on the double of a GPU: errors, parameters, the GPU's memory.

test_model_code.py has what all engines' code shares.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes import pb_utils
from tests.fakes.gpu import INPUTS, OUTPUTS, FakeCuda, FakeTensorRt, write_plan
from tests.fakes.pb_utils import InferenceRequest


class Loaded:
    """The model as Triton would have initialised it, with a version folder as `arlo compile` lays it out."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **change: Any) -> None:
        parameters = {"package": "tensorrt-rtx"} | change.pop("parameters", {})
        self.cuda = FakeCuda()
        self.trt = FakeTensorRt(self.cuda, rtx=True)
        version = tmp_path / "tiny" / "1"
        version.mkdir(parents=True)
        write_plan(version / "model.plan", [((1, 1), (4, 16))], **change.pop("plan", {}))
        monkeypatch.setenv("ARLO_CACHE", str(tmp_path / "cache"))
        monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb_utils)
        package = types.ModuleType("tensorrt_version_under_test")
        package.__path__ = [str(code_folder()), str(code_folder().parent)]  # one folder in a repository
        for name in ("", ".model", ".session", ".batching", ".tensors"):
            monkeypatch.delitem(sys.modules, package.__name__ + name, raising=False)
        monkeypatch.setitem(sys.modules, package.__name__, package)
        module = importlib.import_module(f"{package.__name__}.model")
        session = sys.modules[f"{package.__name__}.session"]
        monkeypatch.setattr(session, "import_tensorrt", self._import)
        monkeypatch.setattr(session, "import_cuda", lambda: self.cuda)
        self.packages: list[str] = []
        self.model = module.TritonPythonModel()
        config = {
            "name": "tiny",
            "max_batch_size": 4,
            "input": [{"name": INPUTS[0], "dims": ["-1"]}, {"name": INPUTS[1], "dims": ["-1"], "optional": True}],
            "output": [{"name": name, "dims": ["2"]} for name in OUTPUTS],
            "parameters": {name: {"string_value": text} for name, text in parameters.items()},
        }
        arguments = {"model_repository": str(version.parent), "model_version": "1", "model_instance_device_id": "0"}
        self.model.initialize(arguments | {"model_config": json.dumps(config | change)})

    def _import(self, package: str) -> FakeTensorRt:
        self.packages.append(package)
        return self.trt

    def execute(self, *requests: InferenceRequest) -> list[Any]:
        self.trt.executions.clear()
        responses: list[Any] = self.model.execute(list(requests))
        return responses


def code_folder() -> Path:
    """Where `arlo compile` takes the model code from."""
    from arlo.templates.tensorrt import session

    assert session.__file__ is not None
    return Path(session.__file__).parent


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    return Loaded(tmp_path, monkeypatch)


def request(tokens: int, *, rows: int = 1, outputs: tuple[str, ...] = ("sum",), **change: Any) -> InferenceRequest:
    ids = np.random.default_rng([tokens, rows]).integers(5, 100, (rows, tokens))
    inputs = {"input_ids": ids, "attention_mask": np.ones((rows, tokens), np.int64)} | change
    return InferenceRequest({name: value for name, value in inputs.items() if value is not None}, list(outputs))


def arrays(response: Any) -> dict[str, Any]:
    assert response.error is None
    return {tensor.name: tensor.as_numpy() for tensor in response.output_tensors}


def test_more_rows_than_the_engine_takes_are_run_apart(loaded: Loaded) -> None:
    responses = loaded.execute(request(5, rows=3), request(5, rows=3))
    assert [arrays(response)["sum"].shape for response in responses] == [(3, 2), (3, 2)]
    assert loaded.trt.executions == [(3, 5), (3, 5)]


def test_an_error_of_the_gpu_is_ours(loaded: Loaded) -> None:
    loaded.cuda.fail["cudaMemcpyAsync"] = 700
    (response,) = loaded.execute(request(5))
    assert response.error.code == "INTERNAL"
    assert "cudaMemcpyAsync failed" in response.error.message


def test_the_engine_has_run_and_its_kernels_are_kept_before_the_first_request(loaded: Loaded, tmp_path: Path) -> None:
    assert loaded.packages == ["tensorrt-rtx"]
    assert loaded.trt.executions == [(rows, 16) for rows in range(1, 5)]
    assert [file.suffix for file in (tmp_path / "cache" / "kernels").iterdir()] == [".kernels"]


def test_the_end_gives_the_gpus_memory_back(loaded: Loaded) -> None:
    loaded.execute(request(5))
    loaded.model.finalize()
    assert loaded.cuda.idle


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"parameters": {"package": "tensorflow"}}, "the parameter package is 'tensorflow', not one of tensorrt"),
        ({"output": [{"name": "logits", "dims": ["2"]}]}, r"names the outputs \['logits'\], the engine has"),
        ({"plan": {"fails": True}}, "tiny/1 does not open: the engine failed"),
    ],
)
def test_what_does_not_suit_stops_the_model_from_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, text: str
) -> None:
    with pytest.raises(pb_utils.TritonModelException, match=text):
        Loaded(tmp_path, monkeypatch, **change)


def test_a_config_may_leave_outputs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Loaded(tmp_path, monkeypatch, output=[{"name": "sum", "dims": ["2"]}])
    (response,) = loaded.execute(request(5))
    assert set(arrays(response)) == {"sum"}
