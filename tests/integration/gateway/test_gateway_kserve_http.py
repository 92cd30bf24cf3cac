"""KServe's v2 protocol over HTTP: tritonclient.http unchanged, and what it does not send."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.fakes.gateway import Gateway
from tests.integration.gateway.examples import Example, answer_to, example

pytestmark = pytest.mark.integration

SENT = example(5, 70, 300)


def tensors(sent: Example, binary: bool) -> list[Any]:
    ids = np.zeros((len(sent.rows), sent.width), np.int64)
    mask = np.zeros_like(ids)
    for index, row in enumerate(sent.rows):
        ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    made = []
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        made.append(triton.InferInput(name, array.shape, "INT64"))
        made[-1].set_data_from_numpy(array, binary_data=binary)
    return made


async def with_client(gateway: Gateway, use: Callable[[Any], Any]) -> Any:
    """The client blocks, so it has a thread of its own."""

    def run() -> Any:
        client = triton.InferenceServerClient(gateway.api)
        try:
            return use(client)
        finally:
            client.close()

    return await asyncio.to_thread(run)


@pytest.mark.parametrize("binary", [True, False])
async def test_tritonclient_infers(gateway: Gateway, binary: bool) -> None:
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("embedding", "last_hidden_state")]
    for wished in (outputs, None):
        for packed in (None, "gzip", "deflate"):
            infer = functools.partial(
                triton.InferenceServerClient.infer,
                model_name="emu",
                inputs=tensors(SENT, binary),
                outputs=wished,
                request_id="mine",
                request_compression_algorithm=packed,
                timeout=5_000_000,
            )
            answer = await with_client(gateway, infer)
            assert answer.get_response()["id"] == "mine"
            for name, value in answer_to(SENT).items():
                np.testing.assert_array_equal(answer.as_numpy(name), value)


async def test_tritonclient_looks_around(gateway: Gateway) -> None:
    def look(client: Any) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("emu")
        assert client.is_model_ready("emu", "1")
        assert not client.is_model_ready("other")
        assert client.get_server_metadata()["name"] == "arlo"
        metadata = client.get_model_metadata("emu")
        assert metadata["inputs"][0] == {"name": "input_ids", "datatype": "INT64", "shape": [-1, -1]}
        assert client.get_model_config("emu")["max_batch_size"] == 64
        assert client.get_inference_statistics("emu")["model_stats"][0]["name"] == "emu"
        assert [each["name"] for each in client.get_model_repository_index()] == ["emu"]
        with pytest.raises(InferenceServerException, match="unknown model 'other'"):
            client.get_model_metadata("other")

    await with_client(gateway, look)


def request(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [[1, 2, 3]]}
    return {"inputs": [{**tensor, **changes}]}


@pytest.mark.parametrize(
    ("path", "body", "size", "answered"),
    [
        ("emu/infer", request(data=[1, 2]), None, (400, "input_ids")),
        ("emu/infer", request(data=["a", 2, 3]), None, (400, "a number that its datatype does not hold")),
        ("emu/infer", request(data=[1, 2, 2**63]), None, (400, "a number that its datatype does not hold")),
        ("emu/infer", request(datatype="FP16"), None, (400, "no form in JSON")),
        ("emu/infer", request(shape="3"), None, (400, "needs a shape")),
        ("emu/infer", request(parameters={"binary_data_size": 8}), None, (400, "more bytes than there are")),
        ("emu/infer", {"inputs": []}, None, (400, "inputs must be a list")),
        ("emu/infer", request(), "9999", (400, "the size of the JSON")),
        ("emu/infer", request(), "0", (400, "takes tensors")),
        ("emu/versions/2/infer", request(), None, (404, "no version '2'")),
        ("other/infer", request(), None, (404, "unknown model")),
        ("emu/infer", {**request(), "outputs": [{"name": "nothing"}]}, None, (400, "nothing")),
    ],
)
async def test_what_is_wrong_is_named(
    gateway: Gateway, path: str, body: dict[str, Any], size: str | None, answered: tuple[int, str]
) -> None:
    status, said = answered
    headers = {} if size is None else {"Inference-Header-Content-Length": size}
    async with httpx.AsyncClient(base_url=f"http://{gateway.api}", timeout=20) as http:
        answer = await http.post(f"/v2/models/{path}", content=json.dumps(body), headers=headers)
        assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
        good = await http.post("/v2/models/em%75/versions/1/infer", json=request())
        assert good.json()["outputs"][1]["data"] == [6.0] * 4
