"""TLS, the bearer token and the limit of messages, on the data port; client certificates are in test_interop_tls.py."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from arlo.client import TLS, AsyncClient, AuthError, UnavailableError
from tests.fakes.certificates import Authority
from tests.fakes.gateway import UNLIMITED, Gateway, grpc_health
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, one_row, request_of

pytestmark = pytest.mark.integration

UNAVAILABLE, UNAUTHENTICATED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@dataclasses.dataclass(frozen=True)
class Tls:
    """Two authorities, and what a gateway is configured with to trust the first."""

    ours: Authority
    theirs: Authority

    def server(self, *, mutual: bool) -> dict[str, str]:
        certificate, key = self.ours.issue("server")
        ca = str(self.ours.ca) if mutual else ""
        return {"certificate_file": str(certificate), "key_file": str(key), "client_ca_file": ca}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("tls")
    return Tls(Authority(folder / "ours"), Authority(folder / "theirs"))


@contextlib.asynccontextmanager
async def stub_with(gateway: Gateway, ca: Path, own: tuple[Path, Path] | None = None) -> AsyncIterator[Any]:
    """A connection that trusts `ca` and shows the certificate `own`."""
    certificate, key = (path.read_bytes() for path in own) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(ca.read_bytes(), key, certificate)
    options = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(gateway.grpc, credentials, options=options) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


def log_is_json(gateway: Gateway) -> bool:
    """Also what gRPC itself has to say of failed handshakes."""
    return all(json.loads(line)["component"] == "gateway" for line in gateway.log.read_text().splitlines())


@pytest.mark.sanitized
async def test_tls(workers: Workers, start: Any, tls: Tls) -> None:
    deployment = workers.deployment("emu", [(0, 64), (1, 512)])
    async with start(deployment, tls=tls.server(mutual=False)) as gateway:
        for _ in range(2):  # before and after those who fail
            async with stub_with(gateway, tls.ours.ca) as stub:
                sent = example(3, 500)
                check(await stub.ModelInfer(request_of(sent)), sent)
                stream = stub.ModelStreamInfer()
                await stream.write(one_row(3))
                assert (await stream.read()).error_message == ""
                await stream.done_writing()
            async with stub_with(gateway, tls.theirs.ca) as stub:
                assert (await refused(stub.ModelInfer(one_row(3)))).code() == UNAVAILABLE
            assert (await refused(gateway.infer(one_row(3)))).code() == UNAVAILABLE  # plain text
        assert log_is_json(gateway)


async def test_an_expired_certificate_is_told_of(start: Any, tls: Tls) -> None:
    certificate, key = tls.ours.issue("expired", valid=False)
    files = {"certificate_file": str(certificate), "key_file": str(key), "client_ca_file": ""}
    async with start(tls=files) as gateway:
        assert [line["file"] for line in gateway.logged("certificate_expired")] == [str(certificate)]
    async with start(tls=tls.server(mutual=False)) as gateway:  # writes on in the same log
        assert len(gateway.logged("certificate_expired")) == 1


async def test_the_sdk_with_client_certificate_and_token(
    workers: Workers, start: Any, tls: Tls, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("opensesame\n")
    options = {"tls": tls.server(mutual=True), "bearer_token_file": str(token)}
    certificate, key = tls.ours.issue("client")
    right = TLS(ca=tls.ours.ca, cert=certificate, key=key)
    async with start(workers.deployment("emu", [(0, 64)]), **options) as gateway:
        async with AsyncClient(gateway.grpc, tls=right, token="opensesame") as client:
            assert (await client.infer([1, 2, 3]))["embedding"].tolist() == [6.0] * 4
        async with AsyncClient(gateway.grpc, tls=right, token="open", retries=0) as client:
            with pytest.raises(AuthError, match="a bearer token is needed"):
                await client.infer([1, 2, 3])
        async with AsyncClient(gateway.grpc, tls=TLS(ca=tls.ours.ca), token="opensesame", retries=0) as client:
            with pytest.raises(UnavailableError):
                await client.infer([1, 2, 3])


WRONG_TOKENS: list[tuple[str, str] | None] = [
    None,
    ("authorization", "Bearer wrong"),
    ("authorization", "Bearer "),
    ("authorization", "Bearer opensesam"),
    ("authorization", "Bearer opensesame1"),
    ("authorization", "opensesame"),
    ("authorization", "Basic opensesame"),
    ("token", "Bearer opensesame"),
]


async def test_the_bearer_token(workers: Workers, start: Any, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("  opensesame\n\n")
    async with start(workers.deployment("emu", [(0, 64)]), bearer_token_file=str(token)) as gateway:
        stub = gateway.stub
        for scheme in ("Bearer", "bearer", "BEARER"):  # its case does not matter
            metadata = [("authorization", f"{scheme} opensesame")]
            check(await stub.ModelInfer(request_of(example(3)), metadata=metadata), example(3))
        for header in WRONG_TOKENS:
            metadata = [header] if header else None
            model = {"name": "emu"}
            calls = [
                stub.ModelInfer(one_row(3), metadata=metadata),
                stub.ServerLive(service_pb2.ServerLiveRequest(), metadata=metadata),
                stub.ServerReady(service_pb2.ServerReadyRequest(), metadata=metadata),
                stub.ServerMetadata(service_pb2.ServerMetadataRequest(), metadata=metadata),
                stub.ModelReady(service_pb2.ModelReadyRequest(**model), metadata=metadata),
                stub.ModelMetadata(service_pb2.ModelMetadataRequest(**model), metadata=metadata),
                stub.ModelConfig(service_pb2.ModelConfigRequest(**model), metadata=metadata),
                stub.ModelStatistics(service_pb2.ModelStatisticsRequest(**model), metadata=metadata),
                stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), metadata=metadata),
                stub.ModelStreamInfer(metadata=metadata).read(),
            ]
            for call in calls:
                error = await refused(call)
                assert error.code() == UNAUTHENTICATED
                assert error.details() == "a bearer token is needed: send the metadata 'authorization: Bearer TOKEN'"
        stream = stub.ModelStreamInfer(metadata=[("authorization", "Bearer opensesame")])
        await stream.write(one_row(3))
        assert (await stream.read()).error_message == ""
        stream.cancel()
        await grpc_health(gateway)  # asked by load balancers, which have no token
        assert "opensesame" not in gateway.log.read_text()


# --- sizes ------------------------------------------------------------------------------------------------------------

LIMIT = 64 * 1024


async def test_an_answer_above_the_limit_is_an_error_too(workers: Workers, start: Any) -> None:
    async with start(workers.deployment("wide", [(0, 512)]), max_message_bytes=LIMIT) as gateway:
        big = request_of(example(512, id="big"), model="wide")
        error = await refused(gateway.infer(big, timeout=5))
        assert error.code() == EXHAUSTED
        small = example(5, outputs=("embedding",), id="small")
        check(await gateway.infer(request_of(small, model="wide")), small, model="wide")
        # On a stream the others get their answers.
        stream = gateway.stub.ModelStreamInfer(timeout=5)
        await stream.write(big)
        answer = await stream.read()
        assert answer.error_message.startswith("[RESOURCE_EXHAUSTED] ")
        assert answer.infer_response.id == "big"
        await stream.write(request_of(small, model="wide"))
        check((await stream.read()).infer_response, small, model="wide")
        await stream.done_writing()
        assert await stream.read() == grpc.aio.EOF
