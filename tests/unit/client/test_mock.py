"""What the clients do, against the shipped mock; every test runs for the sync and the async client."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from arlo.client import (
    AsyncClient,
    Client,
    ClosedError,
    InvalidRequestError,
    MockRequest,
    MockTransport,
    ModelInfo,
    NotFoundError,
    TensorInfo,
    TooLongError,
    UnavailableError,
    errors,
)
from arlo.errors import ConfigError
from tests.fakes.client_twins import Twin
from tests.fakes.kserve_server import MODEL

VECTOR = np.arange(3, dtype=np.float32)


@pytest.fixture
def mock() -> MockTransport:
    return MockTransport({"sentence_embedding": VECTOR}, parameters={"level": 2, "queue_us": 40})


@pytest.fixture
def client(kind: str, mock: MockTransport) -> Iterator[Twin]:
    with Twin(kind, transport=mock) as twin:
        yield twin


def sums(request: MockRequest) -> dict[str, Any]:
    """Tells the rows apart: the sum of the ids, and the number of tokens."""
    ids, mask = request.inputs["input_ids"], request.inputs["attention_mask"]
    return {"sentence_embedding": np.stack(((ids * mask).sum(1), mask.sum(1)), axis=1).astype(np.float32)}


# Calls ---------------------------------------------------------------------------------------------------------------


def test_infer(client: Twin, mock: MockTransport) -> None:
    result = client.infer([101, 7, 102], request_id="mine")
    assert (result.id, result.model, result.lengths, result.attempts) == ("mine", "mock", (3,), 1)
    assert result["sentence_embedding"].tolist() == VECTOR.tolist()
    assert (result.timing.level, result.timing.queue_us, result.timing.execute_us) == (2, 40, None)
    assert result.timing.elapsed_us > 0
    (request,) = mock.requests
    assert (request.id, request.outputs, request.streamed, request.rows) == ("mine", (), False, 1)
    assert request.inputs["input_ids"].tolist() == [[101, 7, 102]]


def test_embed_sends_pieces_and_joins_them(kind: str) -> None:
    mock = MockTransport(sums)
    rows = [[n] * n for n in range(1, 8)]
    with Twin(kind, transport=mock) as client:
        vectors = client.embed(rows, batch_rows=3)
        assert [request.rows for request in mock.requests] == [3, 3, 1]
        assert vectors.tolist() == [[n * n, n] for n in range(1, 8)]
        assert client.embed(rows[:2]).shape == (2, 2)
        for bad in ([], "text"):
            with pytest.raises(InvalidRequestError):
                client.embed(bad)
        with pytest.raises(InvalidRequestError, match="batch_rows"):
            client.embed(rows, batch_rows=0)
        with pytest.raises(InvalidRequestError, match="outputs must be"):
            client.embed(rows, output="nope")


def test_max_length_is_the_smaller_of_the_two(client: Twin, mock: MockTransport) -> None:
    with pytest.raises(TooLongError, match="600 tokens, the longest allowed is 512"):
        client.infer([1] * 600)
    with pytest.raises(TooLongError, match="10 tokens, the longest allowed is 8"):
        client.infer([1] * 10, max_length=8)
    with pytest.raises(TooLongError, match="longest allowed is 512"):
        client.infer([1] * 600, max_length=1000)
    with pytest.raises(InvalidRequestError, match="max_length must be 1 or more"):
        client.infer([1], max_length=0)
    assert mock.requests == []
    assert client.infer([1] * 10, max_length=8, truncate=True).lengths == (8,)


def test_the_model_is_asked_for_once(client: Twin, mock: MockTransport) -> None:
    for _ in range(3):
        client.infer([1])
    assert mock.calls == {"RepositoryIndex": 1, "ModelMetadata": 1, "ModelConfig": 1, "ModelInfer": 3}
    info = client.model_info()
    assert (info.name, info.max_length) == ("mock", 512)
    assert mock.calls["ModelMetadata"] == 1
    mock.info = ModelInfo(name="mock", inputs=info.inputs, outputs=info.outputs, max_length=64)
    assert client.model_info(refresh=True).max_length == 64
    assert mock.calls["ModelMetadata"] == 2


def test_a_named_model_is_not_looked_up(kind: str) -> None:
    mock = MockTransport({"e": VECTOR}, info=MODEL)
    with Twin(kind, transport=mock, model="minilm") as client:
        client.infer([1])
        assert mock.calls["RepositoryIndex"] == 0
    with Twin(kind, transport=MockTransport({"e": VECTOR}), model="other") as client:
        with pytest.raises(NotFoundError, match="the mock serves mock, not other"):
            client.infer([1])


def test_ready(client: Twin, mock: MockTransport) -> None:
    assert client.ready()
    mock.fail(UnavailableError("down", code="UNAVAILABLE"), method="ServerReady")
    assert not client.ready()
    assert mock.calls == {"ServerReady": 2}
    client.infer([1])
    assert client.ready()
    assert mock.calls["ModelReady"] == 1


# Failures ------------------------------------------------------------------------------------------------------------


def test_the_description_is_retried_within_the_same_deadline(client: Twin, mock: MockTransport) -> None:
    mock.fail(UnavailableError("starting"), method="ModelMetadata")
    assert client.infer([1]).attempts == 1
    assert mock.calls["ModelMetadata"] == 2


def test_no_deadline_is_sent_when_the_client_has_none(kind: str, mock: MockTransport) -> None:
    with Twin(kind, transport=mock, timeout_s=None) as client:
        client.infer([1])
        client.infer([1], timeout_s=3)
        for bad in (0, -1):
            with pytest.raises(InvalidRequestError, match="timeout_s must be above 0"):
                client.infer([1], timeout_s=bad)
    assert mock.requests[0].timeout_s is None
    assert mock.requests[1].timeout_s == pytest.approx(3, abs=1)


def test_after_close(client: Twin, mock: MockTransport) -> None:
    client.infer([1])
    client.close()
    client.close()
    assert mock.closed
    with pytest.raises(ClosedError, match="make a new one"):
        client.infer([1])


def test_many_threads_share_one_client() -> None:
    mock = MockTransport(sums)
    failures: list[object] = []
    with Client(transport=mock) as client:

        def work(start: int) -> None:
            for n in range(start, start + 50):
                got = client.infer([n, n])["sentence_embedding"].tolist()
                if got != [2 * n, 2]:
                    failures.append((n, got))

        threads = [threading.Thread(target=work, args=(1000 * t,)) for t in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert mock.calls["ModelMetadata"] == 1


async def test_long_texts_leave_the_event_loop_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from arlo.client.rows import PreparedRow, RowReader

    where: list[bool] = []

    def read(self: RowReader, rows: Any) -> list[PreparedRow]:
        where.append(threading.current_thread() is threading.main_thread())
        return [PreparedRow(np.ones(2, np.int64), {}) for _ in rows]

    monkeypatch.setattr(RowReader, "read", read)
    async with AsyncClient(transport=MockTransport(sums)) as client:
        await client.infer_batch(["short"])
        await client.infer_batch(["long " * 5000])
        await client.infer("long " * 5000)
    assert where == [True, False, False]


# Setting up ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"endpoint": "http://localhost:8001"}, "endpoint must be host:port"),
        ({"endpoint": "localhost"}, "endpoint must be host:port"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"retries": -1}, "retries must be 0 or more"),
        ({"max_message_bytes": 0}, "max_message_bytes must be from 1"),
        ({"max_message_bytes": 2**31}, "max_message_bytes must be from 1"),
    ],
)
@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_bad_settings_are_told_at_once(cls: Any, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        cls(**arguments)


def test_the_twins_have_the_same_face() -> None:
    def face(cls: type) -> dict[str, Any]:
        return {n: m for n, m in inspect.getmembers(cls, inspect.isfunction) if not n.startswith("_")}

    sync, twin = face(Client), face(AsyncClient)
    assert sync.keys() == twin.keys()
    for name in [*sync, "__init__"]:
        ours, theirs = (inspect.signature(getattr(c, name)).parameters.values() for c in (Client, AsyncClient))
        assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs], name
    for name in sync.keys() - {"stream", "classify_stream"}:
        assert inspect.iscoroutinefunction(twin[name]), name
        assert get_type_hints(sync[name])["return"] == get_type_hints(twin[name])["return"], name
    assert inspect.isasyncgenfunction(twin["stream"])
    for name in ("__init__", "infer", "infer_batch", "embed", "stream", "model_info", "ready"):
        behind = [p.kind for p in inspect.signature(getattr(Client, name)).parameters.values()][2:]
        assert set(behind) <= {inspect.Parameter.KEYWORD_ONLY}, name


def test_the_import_is_light() -> None:
    heavy = ["transformers", "torch", "huggingface_hub", "tritonclient.http", "gevent", "rich", "asyncio.windows_utils"]
    program = f"import sys, arlo.client; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# The mock itself -----------------------------------------------------------------------------------------------------


def test_canned_arrays_describe_the_model() -> None:
    mock = MockTransport({"a": np.ones((2, 4), np.float16), "b": np.array(["x"], dtype=object)})
    with Client(transport=mock) as client:
        info = client.model_info()
        assert info.outputs == (
            TensorInfo(name="a", datatype="FP16", shape=(-1, -1, 4)),
            TensorInfo(name="b", datatype="BYTES", shape=(-1, 1)),
        )
        result = client.infer_batch([[1], [2, 3, 4]])
        assert result["a"][:, :, 0].tolist() == [[1, 1, 0], [1, 1, 0]]
        assert [len(r) for r in result.rows("a")] == [1, 3]
        assert result["b"].tolist() == [[b"x"], [b"x"]]
        assert list(client.infer([1], outputs=["b"]).outputs) == ["b"]


def test_a_function_may_refuse() -> None:
    def refuse(request: MockRequest) -> dict[str, Any]:
        raise NotFoundError(f"no {request.inputs['input_ids'][0, 0]}", code="NOT_FOUND")

    with Client(transport=MockTransport(refuse)) as client:
        with pytest.raises(NotFoundError, match="no 3"):
            client.infer([3])


def test_the_guides_example_of_the_mock_runs() -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs" / "client.md").read_text()
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "MockTransport" in block]
    exec(example, {"MockTransport": MockTransport, "UnavailableError": UnavailableError, "Client": Client, "np": np})
    ours = {name for name in vars(errors) if name.endswith("Error") and name not in ("ArloError", "ClientError")}
    assert {name for name in ours if f"`{name}`" not in guide} == set()
