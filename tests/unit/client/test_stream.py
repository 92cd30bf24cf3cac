"""ModelStreamInfer through both clients: order, window, deadlines, broken streams. Real gRPC unless a mock says so."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from arlo.client import (
    AsyncClient,
    AuthError,
    Client,
    ClientError,
    DeadlineExceededError,
    InvalidRequestError,
    MessageTooLargeError,
    MockTransport,
    OverloadedError,
    RequestCancelledError,
    Result,
    ServerError,
    TooLongError,
    UnavailableError,
)
from arlo.client._waiting import now
from tests.fakes.client_twins import Twin
from tests.fakes.kserve_server import KServeServer, answer


def sums(items: Any) -> dict[str, float]:
    """id -> sum of the ids; fails for an item that is an error."""
    return {item.id: float(item["sentence_embedding"][0]) for item in items}


def no_streams(server: KServeServer) -> bool:
    with server.changed:
        return server.changed.wait_for(lambda: server.open_streams == 0, timeout=10)


def test_every_row_gets_one_item(client: Twin, server: KServeServer) -> None:
    rows = [[n, n] for n in range(500)]
    assert sums(client.stream(rows, window=16)) == {str(n): 2.0 * n for n in range(500)}
    assert server.calls["ModelStreamInfer"] == 1
    first = server.requests[0]
    assert first.parameters["timeout"].int64_param == 30_000_000
    assert no_streams(server)


def test_no_rows(client: Twin, server: KServeServer) -> None:
    assert list(client.stream([])) == []
    assert server.calls["ModelStreamInfer"] == 0


def test_a_bad_row_comes_as_its_own_item(client: Twin) -> None:
    items = list(client.stream([[1], [1] * 600, [2], "text"]))
    errors = {item.request_id: type(item) for item in items if isinstance(item, ClientError)}
    assert errors == {"1": TooLongError, "3": InvalidRequestError}
    assert sums(item for item in items if isinstance(item, Result)) == {"0": 1.0, "2": 2.0}


def test_a_message_that_would_end_the_stream_is_not_sent(kind: str, server: KServeServer) -> None:
    with Twin(kind, server.endpoint, max_message_bytes=2_000) as client:
        big, small = list(client.stream([[1] * 400, [2]]))
    assert (type(big), big.request_id) == (MessageTooLargeError, "0")
    assert small.id == "1"


def test_bad_arguments(client: Twin) -> None:
    with pytest.raises(InvalidRequestError, match="window must be 1 or more"):
        next(client.stream([[1]], window=0))
    with pytest.raises(InvalidRequestError, match="outputs must be"):
        next(client.stream([[1]], outputs=["nope"]))
    with pytest.raises(InvalidRequestError, match="pass max_length="):
        with KServeServer(has_config=False) as other, Twin("sync", other.endpoint) as bare:
            next(bare.stream([[1]], truncate=True))


class Shuffle:
    """A transport whose stream answers in the opposite order, `group` requests at a time."""

    def __init__(self, group: int) -> None:
        self._mock = MockTransport(lambda request: {"sentence_embedding": request.inputs["input_ids"][:, :1] * 1.0})
        self._group = group
        self.longest_queue = 0

    def call(self, method: str, request: Any, *, timeout_s: float | None) -> Any:
        return self._mock.call(method, request, timeout_s=timeout_s)

    def stream(self, requests: Iterator[Any]) -> Any:
        return self._Stream(self, requests)

    def close(self) -> None:
        self._mock.close()

    class _Stream:
        def __init__(self, outer: Shuffle, requests: Iterator[Any]) -> None:
            self._outer, self._requests = outer, requests

        def __iter__(self) -> Iterator[Any]:
            held: list[Any] = []
            for request in self._requests:
                held.append(request)
                self._outer.longest_queue = max(self._outer.longest_queue, len(held))
                while len(held) == self._outer._group:
                    for one in reversed(held):
                        inner = self._outer._mock.call("ModelInfer", one, timeout_s=None)
                        yield service_pb2.ModelStreamInferResponse(infer_response=inner)
                    held = []

        def cancel(self) -> None:
            pass


def test_items_come_in_order_of_completion_and_are_matched_by_id() -> None:
    transport = Shuffle(4)
    with Client(transport=transport) as client:
        items = [(i.id, float(i["sentence_embedding"][0])) for i in client.stream([[n] for n in range(8)], window=4)]
    assert [name for name, _ in items] == ["3", "2", "1", "0", "7", "6", "5", "4"]
    assert all(int(name) == value for name, value in items)


def test_the_window_bounds_what_is_under_way(kind: str) -> None:
    pulled = []
    most = 0

    def rows() -> Iterator[list[int]]:
        for n in range(40):
            pulled.append(n)
            yield [n]

    with KServeServer() as server, Twin(kind, server.endpoint) as client:
        for done, item in enumerate(client.stream(rows(), window=3)):
            assert isinstance(item, Result)
            most = max(most, len(pulled) - done)
    assert most <= 3 + 1  # the item in hand has left the window
    assert len(pulled) == 40


def test_results_do_not_wait_for_the_next_row(server: KServeServer) -> None:
    """A live source: its next row comes only once the answer to the one before has been seen."""
    seen = threading.Semaphore(1)

    def rows() -> Iterator[list[int]]:
        for n in range(5):
            assert seen.acquire(timeout=10)
            yield [n]

    got = []
    with Client(server.endpoint) as client:
        for item in client.stream(rows(), window=8):
            assert isinstance(item, Result)
            got.append(item.id)
            seen.release()
    assert got == ["0", "1", "2", "3", "4"]


async def test_an_async_source_may_wait_for_answers(server: KServeServer) -> None:
    seen = asyncio.Semaphore(1)

    async def rows() -> AsyncIterator[list[int]]:
        for n in range(5):
            await seen.acquire()
            yield [n]

    got = []
    async with AsyncClient(server.endpoint) as client:
        async for item in client.stream(rows(), window=8):
            assert isinstance(item, Result)
            got.append(item.id)
            seen.release()
    assert got == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("error", [KeyError, asyncio.CancelledError])
def test_what_the_source_raises_is_raised(client: Twin, server: KServeServer, error: type[BaseException]) -> None:
    def rows() -> Iterator[list[int]]:
        yield [1]
        raise error

    with pytest.raises(error):
        list(client.stream(rows()))
    assert no_streams(server)


def test_leaving_early_ends_the_call(client: Twin, server: KServeServer) -> None:
    def endless() -> Iterator[list[int]]:
        n = 0
        while True:
            yield [n]
            n += 1

    items = client.stream(endless(), window=4)
    for _, item in zip(range(10), items, strict=False):
        assert isinstance(item, Result)
    items.close()
    assert no_streams(server)
    assert client.infer([3])["sentence_embedding"].tolist() == [3.0, 1.0]


# Failures ------------------------------------------------------------------------------------------------------------


def test_errors_of_single_requests(kind: str) -> None:
    words = {1: "[RESOURCE_EXHAUSTED] queue full", 3: "[INVALID_ARGUMENT] bad\nids", 5: "something broke"}

    def infer(request: Any, context: Any) -> Any:
        return words.get(int(np.frombuffer(request.raw_input_contents[0], "<i8")[0])) or answer(request)

    with KServeServer(infer=infer) as server, Twin(kind, server.endpoint) as client:
        items = list(client.stream([[n] for n in range(7)]))
        errors = {i.request_id: (type(i), i.code) for i in items if isinstance(i, ClientError)}
        assert errors == {
            "1": (OverloadedError, "RESOURCE_EXHAUSTED"),
            "3": (InvalidRequestError, "INVALID_ARGUMENT"),
            "5": (ServerError, "UNKNOWN"),
        }
        assert str(next(i for i in items if getattr(i, "request_id", "") == "3")) == "bad\nids"
        assert len(items) == 7


def test_a_request_without_an_answer_expires_and_the_others_live(kind: str) -> None:
    def infer(request: Any, context: Any) -> Any:
        return None if request.id == "1" else answer(request)

    with KServeServer(infer=infer) as server, Twin(kind, server.endpoint) as client:
        items = list(client.stream([[n] for n in range(4)], timeout_s=2))
    assert [i.id for i in items[:3]] == ["0", "2", "3"]
    assert (type(items[3]), items[3].request_id, items[3].attempts) == (DeadlineExceededError, "1", 1)


def test_a_silent_server_ends_every_request_at_its_deadline(kind: str) -> None:
    with KServeServer(infer=lambda request, context: None) as server, Twin(kind, server.endpoint) as client:
        items = list(client.stream([[n] for n in range(6)], timeout_s=1, window=3))
    assert [(type(i), i.request_id) for i in items] == [(DeadlineExceededError, str(n)) for n in range(6)]


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK], ids=["aborted", "ended"])
def test_a_broken_stream_is_opened_again_and_nothing_is_lost(
    client: Twin, server: KServeServer, code: grpc.StatusCode
) -> None:
    server.stream_breaks.extend([(5, code), (5, code)])
    items = list(client.stream([[n] for n in range(30)], window=8))
    assert sums(items) == {str(n): float(n) for n in range(30)}
    assert server.calls["ModelStreamInfer"] == 3
    assert {i.attempts for i in items} >= {1, 2}


def test_a_stream_that_breaks_without_an_answer_is_given_up(kind: str, server: KServeServer) -> None:
    server.stream_breaks.extend([(0, grpc.StatusCode.UNAVAILABLE)] * 10)
    with Twin(kind, server.endpoint, retries=2) as client:
        with pytest.raises(UnavailableError, match="broken on purpose") as caught:
            list(client.stream([[1], [2]]))
    assert (caught.value.attempts, server.calls["ModelStreamInfer"]) == (3, 3)


def test_a_refused_stream_is_not_opened_again(client: Twin, server: KServeServer) -> None:
    server.stream_breaks.extend([(0, grpc.StatusCode.UNAUTHENTICATED)] * 2)
    with pytest.raises(AuthError):
        list(client.stream([[1], [2]]))
    assert server.calls["ModelStreamInfer"] == 1


def test_a_failure_without_an_id_among_several_ends_the_stream(kind: str) -> None:
    transport = MockTransport({"e": np.zeros(2)})

    def nameless(request: Any) -> Any:
        return service_pb2.ModelStreamInferResponse(error_message="who knows")

    transport._stream_response = nameless  # type: ignore[method-assign]
    with Twin(kind, transport=transport) as client:
        (item,) = client.stream([[1]])
        assert (type(item), item.request_id, str(item)) == (ServerError, "0", "who knows")
    transport = MockTransport({"e": np.zeros(2)}, delay_s=0.2)
    transport._stream_response = nameless  # type: ignore[method-assign]
    with Twin(kind, transport=transport) as client:
        with pytest.raises(ServerError, match="without saying which: who knows"):
            list(client.stream([[1], [2], [3]]))


def test_closing_the_client_ends_its_streams(kind: str) -> None:
    with KServeServer(infer=lambda request, context: None if request.id == "1" else answer(request)) as server:
        with Twin(kind, server.endpoint) as client:
            items = client.stream([[0], [1]])
            assert isinstance(next(items), Result)
            client.close()
            with pytest.raises(RequestCancelledError):
                next(items)


def test_no_threads_are_left_behind(server: KServeServer) -> None:
    def ours() -> set[str]:
        return {t.name for t in threading.enumerate() if t.name.startswith("arlo-stream")}

    with Client(server.endpoint) as client:
        assert len(list(client.stream([[n] for n in range(10)]))) == 10
        items = client.stream([[n] for n in range(1000)], window=2)
        next(items)
        items.close()  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread.name.startswith("arlo-stream"):
            thread.join(10)
    assert ours() == set()


async def test_no_tasks_are_left_behind(server: KServeServer) -> None:
    async with AsyncClient(server.endpoint) as client:
        async with contextlib.aclosing(client.stream([[n] for n in range(1000)], window=2)) as items:
            async for _ in items:
                break
    left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and "arlo" in repr(t.get_coro())]
    assert left == []


async def test_the_sync_client_needs_no_event_loop_and_minds_none(server: KServeServer) -> None:
    """As in a notebook, whose cells run on one: what is left early ends at once, and not when that loop has time."""
    with Client(server.endpoint) as client:
        items = client.stream([[n] for n in range(1000)], window=2)
        assert isinstance(next(items), Result)
        del items
        assert no_streams(server)
        assert client.infer([3])["sentence_embedding"].tolist() == [3.0, 1.0]
    with pytest.raises(RuntimeError, match="waits for an event loop"):
        now(asyncio.sleep(0))


# The mock ------------------------------------------------------------------------------------------------------------


def test_the_mock_streams(kind: str) -> None:
    mock = MockTransport({"sentence_embedding": np.ones(2, np.float32)})
    with Twin(kind, transport=mock) as client:
        client.model_info()
        mock.fail(OverloadedError("full", code="RESOURCE_EXHAUSTED"))
        mock.fail(UnavailableError("down", code="UNAVAILABLE"), method="ModelStreamInfer")
        items = list(client.stream([[n] for n in range(4)], window=1))
    assert [type(i) for i in items] == [OverloadedError, Result, Result, Result]
    assert items[0].attempts == 2  # sent again after the break
    assert mock.calls["ModelStreamInfer"] == 2
    assert all(request.streamed for request in mock.requests)
