"""Requests whose answers are known: what the emulated engine computes, computed here."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

DIMS = 4  # of both outputs of the emulated engine
GARBAGE = 99_999  # an id where the mask is 0; it must not show in any answer


@dataclasses.dataclass(frozen=True)
class Example:
    """Rows of token ids and how they are sent."""

    rows: tuple[NDArray[np.int64], ...]
    width: int
    mask: bool = True
    typed: bool = False
    outputs: tuple[str, ...] = ()
    id: str = ""

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.rows]


def rows_of(lengths: Sequence[int], *, seed: int = 0) -> tuple[NDArray[np.int64], ...]:
    """Rows of these lengths; sums of their ids are exact in FP32."""
    random = np.random.default_rng(seed)
    return tuple(random.integers(1, 30_000, length) for length in lengths)


def example(*lengths: int, seed: int = 0, width: int | None = None, **how: Any) -> Example:
    return Example(rows_of(lengths, seed=seed), width or max(lengths), **how)


def request_of(sent: Example, *, model: str = "emu", timeout_us: int | None = None) -> Any:
    """The ModelInferRequest."""
    ids = np.full((len(sent.rows), sent.width), GARBAGE, np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(sent.rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    request = service_pb2.ModelInferRequest(model_name=model, id=sent.id)
    tensors = [("input_ids", ids)] + ([("attention_mask", mask)] if sent.mask else [])
    for name, array in tensors:
        tensor = request.inputs.add(name=name, datatype="INT64", shape=array.shape)
        if sent.typed:
            tensor.contents.int64_contents.extend(array.ravel().tolist())
        else:
            request.raw_input_contents.append(array.astype("<i8").tobytes())
    for name in sent.outputs:
        request.outputs.add(name=name)
    if timeout_us is not None:
        request.parameters["timeout"].int64_param = timeout_us
    return request


def one_row(length: int, *, model: str = "emu", seed: int = 0, **options: Any) -> Any:
    """A request of one row."""
    return request_of(example(length, seed=seed), model=model, **options)


def answer_to(sent: Example, *, token_dims: int = DIMS, pooled_dims: int = DIMS) -> dict[str, NDArray[np.float32]]:
    """The outputs by name: token-level ones as wide as the longest row, with zeros after each row's end."""
    tokens = np.zeros((len(sent.rows), max(sent.lengths), token_dims), np.float32)
    pooled = np.zeros((len(sent.rows), pooled_dims), np.float32)
    for index, row in enumerate(sent.rows):
        tokens[index, : len(row)] = row[:, None]
        pooled[index] = row.sum()
    outputs = {"last_hidden_state": tokens, "embedding": pooled}
    return {name: outputs[name] for name in sent.outputs} if sent.outputs else outputs


def outputs_of(response: Any) -> dict[str, NDArray[np.float32]]:
    """The outputs of a ModelInferResponse by name."""
    assert len(response.outputs) == len(response.raw_output_contents)
    assert {tensor.datatype for tensor in response.outputs} == {"FP32"}
    return {
        tensor.name: np.frombuffer(raw, "<f4").reshape(tuple(tensor.shape))
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def check(response: Any, sent: Example, *, model: str = "emu", **dims: int) -> None:
    """The response answers exactly this request."""
    assert (response.model_name, response.model_version, response.id) == (model, "1", sent.id)
    got, wanted = outputs_of(response), answer_to(sent, **dims)
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array, err_msg=f"{name} of rows of lengths {sent.lengths}")


def inputs_of(sent: Example, module: Any = triton) -> list[Any]:
    """The request as the inputs of tritonclient, its `module` for asyncio or for threads."""
    ids = np.zeros((len(sent.rows), sent.width), np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(sent.rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    inputs = []
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        tensor = module.InferInput(name, array.shape, "INT64")
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def check_result(result: Any, sent: Example) -> None:
    """The result of tritonclient answers exactly this request."""
    for name, wanted in answer_to(sent).items():
        np.testing.assert_array_equal(result.as_numpy(name), wanted)


def of_text(rows: Sequence[str | bytes], pairs: Sequence[str] = (), *, typed: bool = False, **parameters: Any) -> Any:
    """The ModelInferRequest of texts, or of pairs."""
    request = service_pb2.ModelInferRequest(model_name="emu")
    for name, given in (("text", rows), ("text_pair", pairs)):
        if not given:
            continue
        tensor = request.inputs.add(name=name, datatype="BYTES", shape=[len(given), 1] if typed else [len(given)])
        packed = [text if isinstance(text, bytes) else text.encode() for text in given]
        if typed:
            tensor.contents.bytes_contents.extend(packed)
        else:
            request.raw_input_contents.append(b"".join(struct.pack("<I", len(text)) + text for text in packed))
    for key, value in parameters.items():
        request.parameters[key].string_param = value
    return request
