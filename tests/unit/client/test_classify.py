"""Labels from an answer: of a cascade with who said it, of another classifier by softmax."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from arlo.cascade import decide
from arlo.client import InvalidRequestError, ModelInfo, ServerError, TensorInfo
from arlo.client.classification import REASONS
from tests.fakes.client_twins import Twin
from tests.fakes.kserve_server import MODEL, KServeServer

IDS = MODEL.inputs


def info(*outputs: tuple[str, str, tuple[int, ...]], labels: tuple[str, ...] = ()) -> ModelInfo:
    tensors = tuple(TensorInfo(name=name, datatype=datatype, shape=shape) for name, datatype, shape in outputs)
    return ModelInfo(name="kinds", inputs=IDS, outputs=tensors, max_length=64, labels=labels, token_level=frozenset())


def answering(**arrays: Any) -> Any:
    """Answers of a server, one row of the arrays for each row that comes."""

    def infer(request: Any, context: Any) -> Any:
        rows = request.inputs[0].shape[0]
        response = service_pb2.ModelInferResponse(model_name="kinds", model_version="1", id=request.id)
        for wanted in request.outputs:
            array = np.asarray(arrays[wanted.name])[:rows]
            datatype = "INT32" if array.dtype.kind == "i" else "FP32"
            response.outputs.add(name=wanted.name, datatype=datatype, shape=array.shape)
            response.raw_output_contents.append(array.astype({"INT32": "<i4", "FP32": "<f4"}[datatype]).tobytes())
        return response

    return infer


@contextlib.contextmanager
def asked(kind: str, described: ModelInfo, **arrays: Any) -> Iterator[tuple[KServeServer, Twin]]:
    """A server that answers with these arrays, and a client connected to it."""
    with (
        KServeServer(info=described, infer=answering(**arrays)) as server,
        Twin(kind, server.endpoint, model="kinds") as client,
    ):
        yield server, client


def test_of_a_cascade(kind: str) -> None:
    described = info(
        ("logits", "FP32", (-1, 2)),
        ("probabilities", "FP32", (-1, 2)),
        ("cascade_stage", "INT32", (-1,)),
        ("cascade_confidence", "FP32", (-1,)),
        ("cascade_reason", "INT32", (-1,)),
        labels=("cat", "dog"),
    )
    answers = {"probabilities": [[0.9, 0.1], [0.25, 0.75]], "cascade_confidence": [0.875, 0.75]}
    counted = {"cascade_stage": np.array([0, 1]), "cascade_reason": np.array([0, 5])}
    with asked(kind, described, **answers, **counted) as (server, client):
        first, second = client.classify([[1, 2], [3]], parameters={"cascade": "ap"})
        assert (first.label, first.stage, first.confidence, first.reason) == ("cat", 0, 0.875, "confident")
        assert (second.label, second.reason, second.degraded) == ("dog", "stage_absent", True)
        assert second.probability == pytest.approx(0.75)
        assert server.requests[-1].parameters["cascade"].string_param == "ap"


def test_of_another_classifier(kind: str) -> None:
    described = info(("logits", "FP32", (-1, 3)))
    with asked(kind, described, logits=[[0.0, 2.0, 1.0]] * 2) as (_, client):
        found = client.classify([[1], [2], [3]], batch_rows=2)
        assert [(each.label, each.stage, each.reason) for each in found] == [("1", None, None)] * 3
        assert found[0].probability == pytest.approx(float(np.exp(2) / np.exp([0, 2, 1]).sum()))
        assert not found[0].degraded


@pytest.mark.parametrize(
    ("activation", "logits", "probability"),
    [
        ("sigmoid", [-1.0, 0.5, 0.25], 1 / (1 + np.exp(-0.5))),
        ("identity", [-1.0, 2.5, 0.25], 2.5),
        ("tanh", [-1.0, 0.5, 0.25], np.tanh(0.5)),
        ("softmax", [0.0, 2.0, 1.0], np.exp(2) / np.exp([0, 2, 1]).sum()),
        ("", [0.5], 1 / (1 + np.exp(-0.5))),
    ],
)
def test_the_servers_activation_is_applied(kind: str, activation: str, logits: list[float], probability: float) -> None:
    described = dataclasses.replace(info(("logits", "FP32", (-1, len(logits)))), label_activation=activation)
    with asked(kind, described, logits=[logits]) as (_, client):
        assert client.classify([[1]])[0].probability == pytest.approx(float(probability))


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_numbers_that_are_none_have_no_label(kind: str, odd: float) -> None:
    described = info(("logits", "FP32", (-1, 2)))
    with asked(kind, described, logits=[[0.0, 1.0], [odd, 1.0]]) as (_, client):
        with pytest.raises(ServerError, match="NaN or infinite for row 1"):
            client.classify([[1], [2]])


def test_of_no_classifier(kind: str) -> None:
    with KServeServer() as server, Twin(kind, server.endpoint) as client:
        with pytest.raises(InvalidRequestError, match="does not classify: it has no output logits"):
            client.classify([[1]])


def test_of_several_tasks(kind: str) -> None:
    """Rows say their task by name or by number, or a request that of all; each row gets its own task's labels."""
    described = dataclasses.replace(
        info(("logits", "FP32", (-1, 3))),
        inputs=(*IDS, TensorInfo(name="task", datatype="INT64", shape=(-1, 1), optional=True)),
        tasks={"topic": ("cat", "dog"), "tone": ("mild", "harsh", "none")},
    )
    with asked(kind, described, logits=[[0.0, 2.0, -8192.0]] * 3) as (server, client):
        rows = [
            {"input_ids": [1], "task": "tone"},
            {"input_ids": [2, 3], "task": "topic"},
            {"input_ids": [4], "task": [1]},
        ]
        assert [each.label for each in client.classify(rows)] == ["harsh", "dog", "harsh"]
        sent = server.requests[-1]
        at = [tensor.name for tensor in sent.inputs].index("task")
        assert list(sent.inputs[at].shape) == [3, 1]
        assert np.frombuffer(sent.raw_input_contents[at], "<i8").tolist() == [1, 0, 1]
        assert [each.label for each in client.classify([[1], [2]], parameters={"task": "topic"})] == ["dog", "dog"]
        assert "task" not in [tensor.name for tensor in server.requests[-1].inputs]
        # One that came after the client asked which there are.
        assert [each.label for each in client.classify([[1]], parameters={"task": "mood"})] == ["1"]
        with pytest.raises(InvalidRequestError, match="unknown task 'mood'; there are topic, tone"):
            client.infer({"input_ids": [1], "task": "mood"})
        with pytest.raises(InvalidRequestError, match="a row lacks 'task'"):
            client.infer_batch([rows[0], [2]])


def test_reasons_are_those_of_the_gateway() -> None:
    assert REASONS == decide.REASONS
