"""The model code for Triton, outside Triton: batching, outputs by request, errors of one request alone."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from tests.fakes import pb_utils
from tests.fakes.pb_utils import arrays, request
from tests.unit.compile.conftest import FirstBuild


def load(repository: Path, name: str, monkeypatch: pytest.MonkeyPatch, **change: Any) -> Any:
    """The model as Triton would have initialised it: model.py as a module of the package that its folder is."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb_utils)
    folder = repository / name / "1"
    package = types.ModuleType("version_under_test")
    package.__path__ = [str(folder)]
    monkeypatch.setitem(sys.modules, "version_under_test", package)
    monkeypatch.delitem(sys.modules, "version_under_test.model", raising=False)
    monkeypatch.delitem(sys.modules, "version_under_test.session", raising=False)
    monkeypatch.delitem(sys.modules, "version_under_test.batching", raising=False)
    monkeypatch.delitem(sys.modules, "version_under_test.tensors", raising=False)
    module = importlib.import_module("version_under_test.model")
    config = text_format.Parse((repository / name / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    described = json_format.MessageToDict(config, preserving_proto_field_name=True)
    model = module.TritonPythonModel()
    arguments = {
        "model_config": json.dumps(described),
        "model_repository": str(repository / name),
        "model_version": "1",
        "model_instance_kind": "CPU",
        "model_instance_device_id": "0",
    }
    model.initialize(arguments | change)
    return model


@pytest.fixture
def dynamic(first_build: FirstBuild, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("ARLO_THREADS", raising=False)
    return load(first_build.options.out, "tiny_dynamic", monkeypatch)


def test_requests_of_one_length_run_together_and_get_their_own_rows_and_outputs(dynamic: Any) -> None:
    both = ("sentence_embedding", "last_hidden_state")
    requests = [request(7), request(9, outputs=both), request(7, rows=3, outputs=both[1:]), request(7, rows=2)]
    runs: list[tuple[list[str], tuple[int, ...]]] = []
    session = dynamic._session

    class Watched:
        def run(self, wanted: list[str], tensors: dict[str, Any]) -> Any:
            runs.append((wanted, tensors["input_ids"].shape))
            return session.run(wanted, tensors)

    dynamic._session = Watched()
    answers = [arrays(response) for response in dynamic.execute(requests)]
    assert runs == [(list(both), (6, 7)), (list(both), (1, 9))]
    dynamic._session = session
    for asked, got in zip(requests, answers, strict=True):
        alone = arrays(dynamic.execute([asked])[0])
        assert list(got) == list(alone) == asked.outputs
        for name in alone:
            np.testing.assert_allclose(got[name], alone[name], atol=1e-5)


def test_one_bad_request_does_not_fail_its_neighbours(dynamic: Any) -> None:
    outside = request(7, input_ids=np.full((1, 7), 10**6))
    short = request(7, attention_mask=np.ones((1, 5), np.int64))
    missing = request(7, attention_mask=None)
    good = request(7)
    responses = dynamic.execute([outside, good, short, missing])
    np.testing.assert_allclose(
        arrays(responses[1])["sentence_embedding"], arrays(dynamic.execute([good])[0])["sentence_embedding"], atol=1e-5
    )
    errors = [responses[index].error for index in (0, 2, 3)]
    assert [error.code for error in errors] == ["INVALID_ARG"] * 3
    assert "out of data bounds" in errors[0].message
    assert "attention_mask has shape [1, 5], the others have [1, 7]" in errors[1].message
    assert "attention_mask is missing: send input_ids, attention_mask" in errors[2].message
    assert [r.error.code for r in (dynamic.execute([bad])[0] for bad in (outside, short, missing))] == [
        "INVALID_ARG"
    ] * 3


def test_optional_inputs_count_as_zeros(dynamic: Any) -> None:
    left_out = arrays(dynamic.execute([request(7)])[0])["sentence_embedding"]
    zeros = request(7, token_type_ids=np.zeros((1, 7), np.int64))
    ones = request(7, token_type_ids=np.ones((1, 7), np.int64))
    np.testing.assert_array_equal(left_out, arrays(dynamic.execute([zeros])[0])["sentence_embedding"])
    assert np.abs(left_out - arrays(dynamic.execute([ones])[0])["sentence_embedding"]).max() > 1e-4


def test_threads_come_from_the_environment_first(first_build: FirstBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    import onnxruntime

    opened = onnxruntime.InferenceSession

    def watch(path: str, options: Any, **kwargs: Any) -> Any:
        seen.append(options.intra_op_num_threads)
        return opened(path, options, **kwargs)

    monkeypatch.setattr(onnxruntime, "InferenceSession", watch)
    out = first_build.options.out
    monkeypatch.delenv("ARLO_THREADS", raising=False)
    load(out, "tiny_len16", monkeypatch)
    monkeypatch.setenv("ARLO_THREADS", "2")
    load(out, "tiny_len16", monkeypatch)
    assert seen == [1, 2, 1]  # its rows are short: once that is known it keeps to one thread
    monkeypatch.setenv("ARLO_THREADS", "many")
    with pytest.raises(pb_utils.TritonModelException, match="threads 'many'"):
        load(out, "tiny_len16", monkeypatch)


def test_an_engine_that_does_not_fit_its_configuration_is_refused(
    first_build: FirstBuild, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import shutil

    folder = tmp_path / "tiny_len16"
    shutil.copytree(first_build.options.out / "tiny_len16", folder)
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("token_type_ids", "segment_ids"))
    with pytest.raises(pb_utils.TritonModelException, match="build the repository again"):
        load(tmp_path, "tiny_len16", monkeypatch)
    (folder / "1" / "weights.bin").unlink()
    with pytest.raises(pb_utils.TritonModelException, match="does not open"):
        load(tmp_path, "tiny_len16", monkeypatch)
