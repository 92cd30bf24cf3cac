"""Rows of a fixed size in the SDK: what is sent for them, and what is refused before it is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from arlo.client.codec import Codec, from_raw
from arlo.client.errors import InvalidRequestError
from arlo.client.model import ModelInfo, TensorInfo
from arlo.client.rows import RowReader

PIXELS = TensorInfo(name="pixels", datatype="FP32", shape=(-1, 1, 2, 2))
TASK = TensorInfo(name="task", datatype="INT32", shape=(-1, 1), optional=True)
IDS = TensorInfo(name="input_ids", datatype="INT64", shape=(-1, -1))
MASK = TensorInfo(name="attention_mask", datatype="INT64", shape=(-1, -1))
PICTURE = np.arange(4.0).reshape(1, 2, 2)


def codec_of(*inputs: TensorInfo) -> Codec:
    outputs = (TensorInfo(name="logits", datatype="FP32", shape=(-1, 3)),)
    return Codec(ModelInfo(name="m", inputs=inputs, outputs=outputs, max_length=16))


def sent(request: Any) -> dict[str, Any]:
    pairs = zip(request.inputs, request.raw_input_contents, strict=True)
    return {tensor.name: from_raw(tensor, raw).tolist() for tensor, raw in pairs}


def test_arrays_become_rows() -> None:
    codec = codec_of(PIXELS, TASK)
    reader = RowReader(codec)
    request = codec.encode(reader.read([PICTURE, PICTURE.astype(np.uint8)]), request_id="r")
    assert sent(request) == {"pixels": [PICTURE.tolist()] * 2}
    request = codec.encode(reader.read([{"pixels": PICTURE, "task": [2]}]), request_id="r")
    assert sent(request) == {"pixels": [PICTURE.tolist()], "task": [[2]]}
    assert request.inputs[1].datatype == "INT32"


def test_a_tensor_beside_tokens() -> None:
    codec = codec_of(IDS, MASK, TASK)
    reader = RowReader(codec)
    rows = reader.read([{"input_ids": [1, 2, 3], "task": [1]}, {"input_ids": [4], "task": [0]}])
    assert sent(codec.encode(rows, request_id="r")) == {
        "input_ids": [[1, 2, 3], [4, 0, 0]],
        "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "task": [[1], [0]],
    }
    assert "task" not in sent(codec.encode(reader.read([[1, 2]]), request_id="r"))
    with pytest.raises(InvalidRequestError, match="a row lacks 'task'"):
        codec.encode([*rows, *reader.read([[5]])], request_id="r")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a text", r"pixels must be of shape \[1, 2, 2\], not \[\]"),
        (PICTURE[0], r"pixels must be of shape \[1, 2, 2\], not \[2, 2\]"),
        (np.stack([PICTURE, PICTURE]), "use infer_batch for several rows"),
        ([[1, 2], [3]], "pixels must be of shape"),
        (PICTURE.astype(complex), "pixels is FP32, and complex128 is none"),
        ({"pixels": PICTURE, "task": [1.5]}, "task is INT32, and float64 is none"),
        ({"pixels": PICTURE, "task": [1 << 40]}, "task has values that do not fit INT32"),
        ({"pixels": PICTURE, "other": PICTURE}, "there is no input other; there are pixels, task"),
    ],
)
def test_what_is_no_row(row: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        RowReader(codec_of(PIXELS, TASK)).read([row])


def test_what_is_needed() -> None:
    codec = codec_of(PIXELS, TASK)
    with pytest.raises(InvalidRequestError, match="a row lacks 'pixels', which model m needs"):
        codec.encode(RowReader(codec).read([{"task": [1]}]), request_id="r")
    with pytest.raises(InvalidRequestError, match="no rows"):
        RowReader(codec).read([])
