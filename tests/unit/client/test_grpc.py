"""The clients over real gRPC: deadlines, cancelling, retries, sizes, TLS, tokens. For the sync and the async client."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from arlo.client import (
    TLS,
    AsyncClient,
    AuthError,
    Client,
    ClientError,
    ClosedError,
    DeadlineExceededError,
    InvalidRequestError,
    MessageTooLargeError,
    NotFoundError,
    OverloadedError,
    RequestCancelledError,
    ServerError,
    UnavailableError,
)
from arlo.errors import ConfigError
from tests.fakes.client_twins import Twin
from tests.fakes.kserve_server import KServeServer, answer


def test_the_deadline_travels(client: Twin, server: KServeServer) -> None:
    client.infer([1], timeout_s=5)
    left = server.time_left_s[-1]
    assert left is not None
    assert left == pytest.approx(5, abs=1)


def test_an_answer_after_the_deadline(kind: str) -> None:
    release = threading.Event()

    def slow(request: Any, context: Any) -> Any:
        release.wait(10)
        return answer(request)

    with KServeServer(infer=slow) as server, Twin(kind, server.endpoint) as client:
        client.model_info()
        with pytest.raises(DeadlineExceededError, match="larger timeout_s") as caught:
            client.infer([1], timeout_s=0.1, request_id="r")
        assert (caught.value.code, caught.value.request_id, caught.value.attempts) == ("DEADLINE_EXCEEDED", "r", 1)
        release.set()
        assert client.infer([1])["sentence_embedding"].tolist() == [1.0, 1.0]


def test_retries_on_unavailable_and_resource_exhausted(client: Twin, server: KServeServer) -> None:
    server.failures.extend(
        [(grpc.StatusCode.UNAVAILABLE, "no instance"), (grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")]
    )
    assert client.infer([1]).attempts == 3
    server.failures.extend([(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue full")] * 3)
    with pytest.raises(OverloadedError, match="queue full") as caught:
        client.infer([1])
    assert caught.value.attempts == 3
    assert server.calls["ModelInfer"] == 6


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequestError),
        (grpc.StatusCode.NOT_FOUND, NotFoundError),
        (grpc.StatusCode.INTERNAL, ServerError),
        (grpc.StatusCode.UNAUTHENTICATED, AuthError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError),
        (grpc.StatusCode.CANCELLED, RequestCancelledError),
    ],
)
def test_other_codes_are_not_retried(
    client: Twin, server: KServeServer, code: grpc.StatusCode, expected: type[ClientError]
) -> None:
    server.failures.append((code, "because"))
    with pytest.raises(expected, match="because") as caught:
        client.infer([1])
    assert (caught.value.code, caught.value.attempts, server.calls["ModelInfer"]) == (code.name, 1, 1)
    assert client.infer([1]).attempts == 1


def test_nobody_there(kind: str) -> None:
    with KServeServer() as server:
        endpoint = server.endpoint
    with Twin(kind, endpoint, retries=1) as client:
        assert not client.ready(timeout_s=2)
        with pytest.raises(UnavailableError, match="check that the server runs") as caught:
            client.infer([1], timeout_s=5)
        assert caught.value.attempts == 2


def test_a_restarted_server_is_found_again(kind: str) -> None:
    with KServeServer() as server:
        client = Twin(kind, server.endpoint, retries=20)
        client.infer([1])
    with client, KServeServer(bind=server.endpoint):
        assert client.infer([2], timeout_s=20)["sentence_embedding"].tolist() == [2.0, 1.0]


def test_the_only_model_is_found_and_a_choice_is_not_made(kind: str) -> None:
    with KServeServer(models=("b", "a")) as server, Twin(kind, server.endpoint) as client:
        with pytest.raises(NotFoundError, match=r"several models \(a, b\): pass model="):
            client.infer([1])
    with KServeServer(models=()) as server, Twin(kind, server.endpoint) as client:
        with pytest.raises(NotFoundError, match="no model ready"):
            client.infer([1])
    with KServeServer() as server, Twin(kind, server.endpoint, model="nope") as client:
        assert not client.ready()
        with pytest.raises(NotFoundError, match="unknown model 'nope'"):
            client.infer([1])


def test_a_server_without_model_configuration(kind: str) -> None:
    with KServeServer(has_config=False) as server, Twin(kind, server.endpoint) as client:
        assert client.model_info().max_length is None
        assert client.infer([1])["sentence_embedding"].tolist() == [1.0, 1.0]
        # without the configuration nobody says that token_type_ids is optional
        assert [t.name for t in server.requests[-1].inputs] == ["input_ids", "attention_mask", "token_type_ids"]


def test_messages_above_the_default_4_mb_pass(client: Twin) -> None:
    rows = np.ones((800, 512), np.int64)  # 6.5 MB of ids and mask there, 3.3 MB back
    assert client.infer_batch(rows, outputs=["sentence_embedding"])["sentence_embedding"].shape == (800, 2)


def test_messages_above_a_limit_are_not_retried(kind: str) -> None:
    def bulky(request: Any, context: Any) -> Any:
        response = answer(request)
        response.parameters["note"].string_param = "x" * 6_000
        return response

    rows = np.ones((10, 400), np.int64)
    with KServeServer(max_message_bytes=10_000, infer=bulky) as server:
        for client_limit, what in ((1 << 20, rows), (5_000, rows), (5_000, [[1]])):  # server's; ours there; ours back
            with Twin(kind, server.endpoint, max_message_bytes=client_limit) as client:
                with pytest.raises(MessageTooLargeError, match="larger than max") as caught:
                    client.infer_batch(what)
                assert caught.value.attempts == 1


def test_the_token_is_sent_with_every_call(kind: str, server: KServeServer) -> None:
    with Twin(kind, server.endpoint, token="s3cret") as client:
        client.infer([1])
        assert len(list(client.stream([[1]]))) == 1
    assert len(server.metadata) == 5
    assert {m.get("authorization") for m in server.metadata} == {"Bearer s3cret"}
    assert all(m["user-agent"].startswith("arlo-client ") for m in server.metadata)


def test_proxies_of_the_environment_do_not_apply_to_loopback(
    kind: str, server: KServeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with Twin(kind, server.endpoint, retries=0) as client:
        assert client.infer([1]).attempts == 1


# Cancelling and closing ----------------------------------------------------------------------------------------------


class Held:
    """Answers only when told; notes when a call was given up."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()
        self.given_up = threading.Event()

    def __call__(self, request: Any, context: Any) -> Any:
        context.add_callback(lambda: None if self.release.is_set() else self.given_up.set())
        self.started.set()
        while not self.release.wait(0.01) and context.is_active():
            pass
        return answer(request)


async def test_a_cancelled_task_cancels_the_call_on_the_server() -> None:
    held = Held()
    with KServeServer(infer=held) as server:
        async with AsyncClient(server.endpoint) as client:
            await client.model_info()
            task = asyncio.create_task(client.infer([1]))
            assert await asyncio.to_thread(held.started.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(held.given_up.wait, 10)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.infer([1])
        held.release.set()


async def test_closing_the_async_client_ends_what_is_under_way() -> None:
    held = Held()
    with KServeServer(infer=held) as server:
        client = AsyncClient(server.endpoint)
        await client.model_info()
        task = asyncio.create_task(client.infer([1]))
        assert await asyncio.to_thread(held.started.wait, 10)
        await client.close()
        with pytest.raises(RequestCancelledError):
            await task
        with pytest.raises(ClosedError):
            await client.infer([1])
        held.release.set()


def test_closing_the_client_ends_what_is_under_way() -> None:
    held = Held()
    caught: list[BaseException] = []
    with KServeServer(infer=held) as server:
        client = Client(server.endpoint)
        client.model_info()

        def call() -> None:
            try:
                client.infer([1])
            except ClientError as error:
                caught.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        assert held.started.wait(10)
        client.close()
        thread.join(10)
        held.release.set()
    assert [type(e) for e in caught] == [RequestCancelledError]


def test_an_async_client_belongs_to_one_loop(server: KServeServer) -> None:
    with Twin("async", server.endpoint) as first, Twin("async", server.endpoint) as second:
        assert first.infer([1]).attempts == 1
        own, second.client = second.client, first.client
        with pytest.raises(ClosedError, match="one client per loop"):
            second.infer([1])
        second.client = own


# TLS -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("cryptography", reason="makes the certificates of these tests")
    from tests.fakes.certificates import Authority

    return Authority(tmp_path_factory.mktemp("tls") / "authority")


@pytest.mark.parametrize(
    ("name", "mutual", "good", "bad"),
    [
        # Bad: the system does not know this authority; plain text.
        ("server", False, lambda ca, cert, key: TLS(ca=ca), [lambda ca: TLS(), lambda ca: None]),
        (
            "gateway.example",  # which is not the name that is called
            False,
            lambda ca, cert, key: TLS(ca=ca, server_name="gateway.example"),
            [lambda ca: TLS(ca=ca)],
        ),
        ("server", True, lambda ca, cert, key: TLS(ca=ca, cert=cert, key=key), [lambda ca: TLS(ca=ca)]),
    ],
    ids=["authority", "name", "mutual"],
)
def test_tls(kind: str, authority: Any, *, name: str, mutual: bool, good: Any, bad: list[Any]) -> None:
    (cert, key), mine = authority.issue(name, loopback=name == "server"), authority.issue("someone")
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), cert.read_bytes())],
        root_certificates=authority.ca.read_bytes() if mutual else None,
        require_client_auth=mutual,
    )
    with KServeServer(credentials=credentials) as server:
        with Twin(kind, server.endpoint, tls=good(authority.ca, *mine), token="t") as client:
            assert client.infer([1]).attempts == 1
        for wrong in bad:
            with Twin(kind, server.endpoint, tls=wrong(authority.ca), retries=0) as client:
                with pytest.raises(UnavailableError):
                    client.infer([1])


@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_bad_tls_settings_are_told_at_once(cls: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cert and key go together"):
        cls(tls=TLS(cert="x"))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        cls(tls=TLS(ca=tmp_path / "none.pem"))
