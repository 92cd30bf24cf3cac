"""What comes back from a runtime before it joins is checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from arlo.control.reconcile.probe import check_answer, request_for, warm_up
from arlo.errors import WorkerError
from tests.fakes.placements import MANIFEST

RUNTIME = MANIFEST.runtimes[0]


def answer(
    values: NDArray[Any] | None = None, *, name: str = "embedding", datatype: str = "FP32", rows: int = 1
) -> service_pb2.ModelInferResponse:
    data = np.zeros((rows, 384), np.float32) if values is None else values
    response = service_pb2.ModelInferResponse(model_name=RUNTIME.name)
    response.outputs.add(name=name, datatype=datatype, shape=data.shape)
    response.raw_output_contents.append(data.tobytes())
    return response


def test_request_is_of_the_longest_length_with_everything_in_it() -> None:
    request = request_for(MANIFEST, RUNTIME, 2)
    assert request.model_name == "m_64"
    assert [(i.name, list(i.shape)) for i in request.inputs] == [
        ("input_ids", [2, 64]),
        ("attention_mask", [2, 64]),
        ("token_type_ids", [2, 64]),
    ]
    filled = [np.frombuffer(raw, np.int64) for raw in request.raw_input_contents]
    assert [set(values.tolist()) for values in filled] == [{1}, {1}, {1}]


def test_a_right_answer_passes() -> None:
    check_answer(MANIFEST, RUNTIME, 2, answer(rows=2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (answer(name="other"), "without the output embedding"),
        (answer(datatype="FP64"), r"answers embedding as FP64 \[1, 384\], the manifest says FP32"),
        (answer(np.zeros((1, 383), np.float32)), r"FP32 \[1, 383\]"),
        (answer(np.full((1, 384), np.nan, np.float32)), "not finite"),
        (answer(np.full((1, 384), np.inf, np.float32)), "not finite"),
    ],
)
def test_a_wrong_answer_is_refused(wrong: service_pb2.ModelInferResponse, message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        check_answer(MANIFEST, RUNTIME, 1, wrong)


@pytest.mark.parametrize("size", [0, 7, 4 * 383])
def test_an_answer_whose_data_is_cut_short_is_refused(size: int) -> None:
    short = answer()
    short.raw_output_contents[0] = short.raw_output_contents[0][:size]
    with pytest.raises(WorkerError, match=f"{size} bytes"):
        check_answer(MANIFEST, RUNTIME, 1, short)


async def test_a_worker_that_is_not_there() -> None:
    with pytest.raises(WorkerError, match=r"m_64 does not answer on 127\.0\.0\.1:1: .*UNAVAILABLE"):
        await warm_up("127.0.0.1:1", MANIFEST, RUNTIME, requests=1, timeout_s=5)
