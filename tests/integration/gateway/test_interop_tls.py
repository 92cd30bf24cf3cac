"""TLS by its versions and its errors: what the client sees, and that the gateway's log tells of it.

test_gateway_security.py has the rest: other authorities, plain text, client certificates, the SDK.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.fakes.certificates import Authority
from tests.fakes.gateway import Gateway
from tests.fakes.h2_client import H2Client, connect
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, one_row, request_of

pytestmark = pytest.mark.integration

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
SENT = example(30)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


def files(authority: Authority, *, mutual: bool = False, valid: bool = True) -> dict[str, str]:
    certificate, key = authority.issue("server", valid=valid)
    ca = str(authority.ca) if mutual else ""
    return {"certificate_file": str(certificate), "key_file": str(key), "client_ca_file": ca}


def context(
    ca: Path, own: tuple[Path, Path] | None = None, *, version: str = "1.3", alpn: tuple[str, ...] = ("h2",)
) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=str(ca))
    made.minimum_version = made.maximum_version = VERSIONS[version]
    if alpn:
        made.set_alpn_protocols(list(alpn))
    if own is not None:
        made.load_cert_chain(*own)
    return made


def secured(gateway: Gateway, how: ssl.SSLContext, host: str = "127.0.0.1") -> ssl.SSLSocket:
    return how.wrap_socket(connect(gateway.grpc), server_hostname=host)


def ask(gateway: Gateway, how: ssl.SSLContext) -> tuple[str, str]:
    """One request; what was agreed on: version and protocol."""
    with secured(gateway, how) as connection, H2Client(connection) as client:
        agreed = connection.version() or "", connection.selected_alpn_protocol() or ""
        body = client.infer(request_of(SENT).SerializeToString()).body
        check(service_pb2.ModelInferResponse.FromString(body), SENT)
        return agreed


@pytest.mark.parametrize("mutual", [False, True], ids=["server", "mutual"])
async def test_versions(workers: Workers, start: Any, ours: Authority, mutual: bool) -> None:
    own = ours.issue("client") if mutual else None
    async with start(workers.deployment("emu", [(0, 64)]), tls=files(ours, mutual=mutual)) as gateway:
        for version in VERSIONS:
            how = context(ours.ca, own, version=version)
            assert await asyncio.to_thread(ask, gateway, how) == (f"TLSv{version}", "h2")


async def test_old_versions_and_other_protocols_are_refused(workers: Workers, start: Any, ours: Authority) -> None:
    async with start(workers.deployment("emu", [(0, 64)]), tls=files(ours)) as gateway:

        def old() -> None:
            how = ssl.create_default_context(cafile=str(ours.ca))
            how.set_ciphers("ALL:@SECLEVEL=0")
            how.options &= ~ssl.OP_NO_TLSv1_1
            how.minimum_version, how.maximum_version = ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError)):
                secured(gateway, how).close()

        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            await asyncio.to_thread(old)
        await asyncio.to_thread(other_protocol, gateway, ours.ca)
        await asyncio.to_thread(ask, gateway, context(ours.ca))


def other_protocol(gateway: Gateway, ca: Path) -> None:
    """A client that speaks HTTP/1.1 only is told so in the handshake, or gets no answer to it."""
    try:
        with secured(gateway, context(ca, alpn=("http/1.1",))) as connection:
            assert connection.selected_alpn_protocol() is None
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not (connection.recv(1000)).startswith(b"HTTP/1.1 200")
    except (ssl.SSLError, ConnectionError):
        pass


async def test_what_a_client_sees_of_a_bad_server_certificate(
    workers: Workers, start: Any, ours: Authority, theirs: Authority
) -> None:
    deployment = workers.deployment("emu", [(0, 64)])
    async with start(deployment, tls=files(ours)) as gateway:

        def seen(ca: Path, host: str = "127.0.0.1") -> str:
            with pytest.raises(ssl.SSLCertVerificationError) as raised:
                secured(gateway, context(ca), host).close()
            return raised.value.verify_message

        assert "signature failure" in await asyncio.to_thread(seen, theirs.ca)  # both authorities have one name
        assert "IP address mismatch" in await asyncio.to_thread(seen, ours.ca, "127.0.0.2")
        assert "ostname mismatch" in await asyncio.to_thread(seen, ours.ca, "elsewhere.example")
        credentials = grpc.ssl_channel_credentials(ours.ca.read_bytes())
        options = [("grpc.ssl_target_name_override", "elsewhere.example"), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(gateway.grpc, credentials, options=options) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(one_row(3), timeout=5)
            assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        await told_of_a_handshake(gateway)
        await asyncio.to_thread(ask, gateway, context(ours.ca))
    async with start(deployment, tls=files(ours, valid=False)) as gateway:
        assert "expired" in await asyncio.to_thread(seen, ours.ca)


async def test_bad_client_certificates(workers: Workers, start: Any, ours: Authority, theirs: Authority) -> None:
    owns = {
        "none": None,
        "expired": ours.issue("expired", valid=False),
        "of another authority": theirs.issue("theirs"),
    }
    good = ours.issue("good")
    async with start(workers.deployment("emu", [(0, 64)]), tls=files(ours, mutual=True)) as gateway:
        for version in VERSIONS:
            for case, own in owns.items():
                before = len(handshakes(gateway))

                def refused(version: str = version, own: tuple[Path, Path] | None = own) -> None:
                    """In TLS 1.3 the client is through with the handshake before it hears of it."""
                    with pytest.raises((OSError, AssertionError)):
                        ask(gateway, context(ours.ca, own, version=version))

                await asyncio.to_thread(refused)
                await told_of_a_handshake(gateway, before, f"{case} in TLS {version}")
                await asyncio.to_thread(ask, gateway, context(ours.ca, good, version=version))


def handshakes(gateway: Gateway) -> list[Any]:
    """The lines of the log that tell of one that failed; each line is JSON."""
    lines = [json.loads(line) for line in gateway.log.read_text().splitlines()]
    return [line for line in lines if re.search(r"handshake|certificate|\btls\b|\bssl\b", json.dumps(line), re.I)]


async def told_of_a_handshake(gateway: Gateway, before: int = 0, case: str = "") -> None:
    """More of them are told of than before."""
    await until(lambda: len(handshakes(gateway)) > before, f"the log tells of the handshake: {case}", timeout_s=5)


async def test_a_handshake_that_never_ends_holds_nobody(workers: Workers, start: Any, ours: Authority) -> None:
    async with start(workers.deployment("emu", [(0, 64)]), tls=files(ours)) as gateway:
        silent = [connect(gateway.grpc) for _ in range(50)]
        try:
            for number, each in enumerate(silent):
                if number % 2:
                    each.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[: number % 11 + 1])
            await asyncio.to_thread(ask, gateway, context(ours.ca))
        finally:
            for each in silent:
                each.close()
