"""Clients made for Triton work unchanged: `tritonclient.grpc` sync, async and streaming, and the `kserve` package."""

from __future__ import annotations

import asyncio
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from tests.fakes.gateway import SERVING, Gateway, grpc_health
from tests.integration.gateway.conftest import LENGTHS
from tests.integration.gateway.examples import (
    DIMS,
    Example,
    answer_to,
    check_result,
    example,
    inputs_of,
    one_row,
    rows_of,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def client(gateway: Gateway) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(gateway.grpc) as client:
        yield client


def test_sync(client: triton.InferenceServerClient) -> None:
    for length in (1, 63, 64, 65, 300, 512):
        sent = example(length, seed=length)
        result = client.infer("emu", inputs_of(sent), request_id=f"id {length}")
        check_result(result, sent)
        assert result.get_response().id == f"id {length}"
    batch = example(5, 70, 511)
    check_result(client.infer("emu", inputs_of(batch), model_version="1"), batch)
    wanted = [triton.InferRequestedOutput("embedding")]
    result = client.infer("emu", inputs_of(batch), outputs=wanted)
    assert [output.name for output in result.get_response().outputs] == ["embedding"]
    assert result.as_numpy("last_hidden_state") is None


def test_callbacks(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    examples = [example(1 + 17 * number % 512, seed=number) for number in range(50)]
    for number, sent in enumerate(examples):

        def answered(result: Any, error: Any, number: int = number) -> None:
            answers.put((number, result, error))

        client.async_infer("emu", inputs_of(sent), answered)
    seen = set()
    for _ in examples:
        number, result, error = answers.get(timeout=20)
        assert error is None
        check_result(result, examples[number])
        seen.add(number)
    assert len(seen) == len(examples)


def test_a_callback_gets_the_error(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.async_infer("other", inputs_of(example(3)), lambda result, error: answers.put((result, error)))
    result, error = answers.get(timeout=20)
    assert result is None
    assert isinstance(error, InferenceServerException)
    assert error.status() == "StatusCode.NOT_FOUND"
    assert "unknown model 'other'; this gateway serves 'emu'" in error.message()


async def test_asyncio(gateway: Gateway) -> None:
    examples = [example(1 + 31 * number % 512, seed=number) for number in range(50)]
    async with triton_aio.InferenceServerClient(gateway.grpc) as client:
        assert await client.is_server_ready()
        results = await asyncio.gather(*(client.infer("emu", inputs_of(sent, triton_aio)) for sent in examples))
        for result, sent in zip(results, examples, strict=True):
            check_result(result, sent)


def test_stream_of_200_with_bad_ones_between(client: triton.InferenceServerClient) -> None:
    """All are in flight at once; every fifth is wrong and gets an error of its own, by id."""
    examples = {str(n): example(1 + 13 * n % 512, 1 + 7 * n % 512, seed=n) for n in range(200)}
    bad = {str(n) for n in range(0, 200, 5)}
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for request_id, sent in examples.items():
        model = "nobody" if request_id in bad else "emu"
        client.async_stream_infer(model, inputs_of(sent), request_id=request_id)
    good, errors = set(), 0
    for _ in examples:
        result, error = answers.get(timeout=20)
        if error is None:
            request_id = result.get_response().id
            check_result(result, examples[request_id])
            good.add(request_id)
        else:
            assert "[NOT_FOUND] unknown model 'nobody'" in str(error)
            errors += 1
    assert good == set(examples) - bad
    assert errors == len(bad)
    client.stop_stream()
    assert answers.empty()


async def test_stream_errors_carry_their_id(gateway: Gateway) -> None:
    """What tritonclient's callback does not show: the raw answer names the request that failed."""
    stream = gateway.stub.ModelStreamInfer()
    wrong = service_pb2.ModelInferRequest(model_name="emu", id="wrong")
    await stream.write(wrong)
    answer = await stream.read()
    assert answer.error_message == "[INVALID_ARGUMENT] input 'input_ids' of model 'emu' is missing"
    assert answer.infer_response.id == "wrong"
    right = one_row(3, seed=1)
    right.id = "right"
    await stream.write(right)
    answer = await stream.read()
    assert (answer.error_message, answer.infer_response.id) == ("", "right")
    await stream.done_writing()
    assert await stream.read() == grpc.aio.EOF
    assert await stream.code() == grpc.StatusCode.OK


def test_stream_says_which_answer_is_the_last(client: triton.InferenceServerClient) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("emu", inputs_of(example(3)), enable_empty_final_response=True)
    result, error = answers.get(timeout=20)
    assert error is None
    assert result.get_response().parameters["triton_final_response"].bool_param
    client.stop_stream()


def test_streams_side_by_side(gateway: Gateway) -> None:
    """Each stream gets the answers to its own requests, though their ids are the same."""

    def use(seed: int) -> None:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        examples = {str(n): example(1 + (n + seed) % 512, seed=seed) for n in range(40)}
        with triton.InferenceServerClient(gateway.grpc) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for request_id, sent in examples.items():
                client.async_stream_infer("emu", inputs_of(sent), request_id=request_id)
            while examples:
                result, error = answers.get(timeout=20)
                assert error is None
                check_result(result, examples.pop(result.get_response().id))
            client.stop_stream()
        done.append(seed)

    done: list[int] = []
    threads = [threading.Thread(target=use, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 100, 200, 300]


def test_kserve_package(gateway: Gateway) -> None:
    """In a process of its own: its protocol classes and tritonclient's cannot be in one."""
    program = Path(__file__).with_name("kserve_client.py")
    rows = rows_of((70, 3))
    command = [sys.executable, "-W", "ignore", str(program), gateway.grpc]
    sent = json.dumps([row.tolist() for row in rows])
    done = subprocess.run(command, input=sent, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["live"] is True
    assert answer["ready"] is True
    assert answer["model_ready"] is True
    assert answer["error"] == "NOT_FOUND"
    wanted = answer_to(Example(rows, 70))
    np.testing.assert_array_equal(np.asarray(answer["embedding"]).reshape(2, DIMS), wanted["embedding"])
    np.testing.assert_array_equal(
        np.asarray(answer["last_hidden_state"]).reshape(2, 70, DIMS), wanted["last_hidden_state"]
    )


def test_health(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("emu")
    assert client.is_model_ready("emu", "1")
    assert not client.is_model_ready("other")
    assert not client.is_model_ready("emu", "7")


def test_metadata(client: triton.InferenceServerClient) -> None:
    server = client.get_server_metadata()
    assert server.name == "arlo"
    model = client.get_model_metadata("emu")
    assert (model.name, list(model.versions)) == ("emu", ["1"])
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [
        ("input_ids", "INT64", [-1, -1]),
        ("attention_mask", "INT64", [-1, -1]),
    ]
    assert [(t.name, t.datatype, list(t.shape)) for t in model.outputs] == [
        ("last_hidden_state", "FP32", [-1, -1, DIMS]),
        ("embedding", "FP32", [-1, DIMS]),
    ]


def test_config(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config("emu").config
    assert config.name == "emu"
    assert config.max_batch_size == 64
    assert [(t.name, list(t.dims), t.optional) for t in config.input] == [
        ("input_ids", [-1], False),
        ("attention_mask", [-1], True),
    ]
    assert [(t.name, list(t.dims)) for t in config.output] == [("last_hidden_state", [-1, DIMS]), ("embedding", [DIMS])]
    assert config.parameters["max_length"].string_value == str(LENGTHS[-1])
    assert config.parameters["slo_ms"].string_value == "2000"
    assert config.parameters["default_timeout_ms"].string_value == "20000"


def test_repository_index(client: triton.InferenceServerClient) -> None:
    index = client.get_model_repository_index()
    assert [(model.name, model.version, model.state) for model in index.models] == [("emu", "1", "READY")]


def test_statistics(client: triton.InferenceServerClient) -> None:
    def success() -> Any:
        (stats,) = client.get_inference_statistics("emu").model_stats
        assert (stats.name, stats.version) == ("emu", "1")
        return stats.inference_stats.success

    before = success()
    client.infer("emu", inputs_of(example(3, 4)))
    after = success()
    assert after.count - before.count == 2  # rows
    assert after.ns - before.ns >= 1_000_000  # two rows of a millisecond, side by side or not
    (every,) = client.get_inference_statistics().model_stats
    assert every.name == "emu"


def test_unknown_names_in_calls_about_models(client: triton.InferenceServerClient) -> None:
    for call in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
        with pytest.raises(InferenceServerException, match="unknown model 'x'; this gateway serves 'emu'"):
            call("x")
        with pytest.raises(InferenceServerException, match="model 'emu' has no version '3'; it has version '1'"):
            call("emu", "3")


def test_what_cannot_be_honoured_is_unimplemented_with_a_reason(client: triton.InferenceServerClient) -> None:
    calls = {
        "shared memory is not supported": [
            lambda: client.register_system_shared_memory("r", "/r", 64),
            client.unregister_system_shared_memory,
            client.get_system_shared_memory_status,
            lambda: client.register_cuda_shared_memory("r", b"aGFuZGxl", 0, 64),
            client.unregister_cuda_shared_memory,
            client.get_cuda_shared_memory_status,
        ],
        "models are not loaded or unloaded through the data port": [
            lambda: client.load_model("emu"),
            lambda: client.unload_model("emu"),
        ],
        "trace and log settings belong to one Triton server": [
            lambda: client.update_trace_settings(settings={"trace_rate": "1"}),
            client.get_trace_settings,
            lambda: client.update_log_settings({"log_verbose_level": 1}),
            client.get_log_settings,
        ],
    }
    for reason, each in calls.items():
        for call in each:
            with pytest.raises(InferenceServerException, match=reason) as raised:
                call()
            assert raised.value.status() == "StatusCode.UNIMPLEMENTED"
    assert client.is_server_live()


async def test_grpc_health(gateway: Gateway) -> None:
    """The standard health service, as load balancers and Kubernetes ask it."""
    assert await grpc_health(gateway) == SERVING
