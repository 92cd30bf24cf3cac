"""The model code for TensorRT engines, outside Triton, on the double of a GPU: batching, errors, parameters."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.compile.repository.triton_config import model_code
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


def test_requests_of_one_length_run_together_and_get_their_own_rows_and_outputs(loaded: Loaded) -> None:
    requests = [request(7), request(9, outputs=OUTPUTS), request(7, rows=2, outputs=OUTPUTS[1:])]
    answers = [arrays(response) for response in loaded.execute(*requests)]
    assert sorted(loaded.trt.executions) == [(1, 9), (3, 7)]
    assert [set(answer) for answer in answers] == [{"sum"}, {"sum", "hidden"}, {"hidden"}]
    assert answers[0]["sum"].tolist() == [[requests[0].inputs["input_ids"].sum(), 7]]
    np.testing.assert_array_equal(answers[2]["hidden"][..., 0], 2 * requests[2].inputs["input_ids"])


def test_an_optional_input_that_is_left_out_is_zeros(loaded: Loaded) -> None:
    (response,) = loaded.execute(request(5, attention_mask=None))
    assert arrays(response)["sum"].tolist() == [[0, 0]]


def test_a_bad_request_fails_alone_as_the_callers_mistake(loaded: Loaded) -> None:
    wrong = np.ones((1, 6), np.int64)
    responses = loaded.execute(request(5), request(17), request(5, input_ids=None), request(5, attention_mask=wrong))
    assert arrays(responses[0])
    assert [response.error.code for response in responses[1:]] == ["INVALID_ARG"] * 3
    assert "does not take 1 rows of 17 tokens" in responses[1].error.message
    assert "input input_ids is missing" in responses[2].error.message
    assert "attention_mask has shape [1, 6], the others have [1, 5]" in responses[3].error.message


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
        ({"parameters": {"cuda_graphs": "many"}}, "cuda_graphs is 'many', not a whole number"),
        ({"input": [{"name": "ids", "dims": ["-1"]}]}, r"names the inputs \['ids'\], the engine has"),
        ({"output": [{"name": "logits", "dims": ["2"]}]}, r"names the outputs \['logits'\], the engine has"),
        ({"plan": {"fails": True}}, "model.plan does not open in tensorrt-rtx: the engine failed"),
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


def test_cuda_graphs_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Loaded(tmp_path, monkeypatch, parameters={"cuda_graphs": "0"})
    assert loaded.trt.contexts[0].cuda_graph_strategy == "off"


def test_the_model_code_is_found_where_the_package_lies() -> None:
    assert {Path(path).name for path in model_code("tensorrt")} == {
        "batching.py",
        "model.py",
        "session.py",
        "tensors.py",
    }
