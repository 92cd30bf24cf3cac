"""HTTP/2 as it may legally come: cut anywhere, padded, continued, with priorities, through small windows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, DataFrame, HeadersFrame, PingFrame, SettingsFrame
from tritonclient.grpc import service_pb2

from tests.fakes.gateway import Gateway
from tests.fakes.h2_client import H2Client, connect, framed, request_headers
from tests.fakes.raw_http2 import ACK, DATA, GOAWAY, PING, RawHttp2
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, one_row, request_of

pytestmark = pytest.mark.integration

SENT = example(40)
BODY = request_of(SENT).SerializeToString()


def verify(body: bytes, sent: Any = SENT) -> None:
    check(service_pb2.ModelInferResponse.FromString(body), sent)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[H2Client]:
    with H2Client(connect(gateway.grpc)) as client:
        yield client


async def off_loop(work: Callable[[], Any]) -> Any:
    """Blocking work beside the loop that watches the workers."""
    return await asyncio.to_thread(work)


# --- bytes in any pieces ----------------------------------------------------------------------------------------------


async def test_byte_by_byte(gateway: Gateway) -> None:
    def ask() -> None:
        every = H2Client(connect(gateway.grpc), cut=lambda data: [bytes((byte,)) for byte in data])
        with every as client:
            for _ in range(2):
                verify(client.infer(BODY).body)

    await off_loop(ask)


async def test_cut_anywhere(gateway: Gateway) -> None:
    """Preface, SETTINGS, HEADERS and DATA as two segments, cut at each place of the first 200 bytes and some later."""

    def ask(at: int) -> None:
        with H2Client(connect(gateway.grpc), cut=lambda data: [data[:at], data[at:]]) as client:
            verify(client.infer(BODY).body)

    for at in (*range(1, 200), *range(200, len(BODY), 97)):
        await off_loop(lambda at=at: ask(at))


async def test_everything_in_one_segment(gateway: Gateway) -> None:
    def ask() -> None:
        with H2Client(connect(gateway.grpc)) as client:
            streams = [client.call(BODY) for _ in range(5)]  # nothing is sent before answer()
            for stream in streams:
                verify(client.answer(stream).body)

    await off_loop(ask)


async def test_a_message_in_frames_of_any_size(client: H2Client) -> None:
    def ask() -> None:
        body = framed(BODY)
        for size in (1, 2, 3, 4, 5, 6, 100):
            stream = client.begin()
            for at in range(0, len(body), size):
                client.h2.send_data(stream, body[at : at + size])
            client.h2.end_stream(stream)  # an empty frame of its own
            verify(client.answer(stream).body)

    await off_loop(ask)


# --- frames that may be there -----------------------------------------------------------------------------------------


async def test_padding(client: H2Client) -> None:
    def ask() -> None:
        for pad in (0, 1, 255):
            stream = client.begin()
            client.h2.send_data(stream, framed(BODY), end_stream=True, pad_length=pad)
            verify(client.answer(stream).body)

    await off_loop(ask)


def encoded(**others: str) -> bytes:
    return bytes(Encoder().encode(request_headers(**others)))


async def test_headers_padded_and_continued(gateway: Gateway) -> None:
    """Frames made by hand: h2 makes neither. Any number of CONTINUATIONs, empty ones too."""

    def ask(pieces: int, pad: int, *, empty: bool) -> None:
        with H2Client(connect(gateway.grpc)) as client:
            stream = client.begin()  # so that h2 knows of it; replaced by what follows
            client.h2.clear_outbound_data_buffer()
            client.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize())
            block = encoded(x_filler="f" * 300)
            size = -(-len(block) // pieces)
            parts = [block[at : at + size] for at in range(0, len(block), size)] + [b""] * empty
            first = HeadersFrame(stream, data=parts[0], pad_length=pad)
            frames: list[Any] = [first, *(ContinuationFrame(stream, data=part) for part in parts[1:])]
            first.flags |= {"PADDED"} if pad else set()
            frames[-1].flags.add("END_HEADERS")
            data = DataFrame(stream, data=framed(BODY), flags=["END_STREAM"])
            client.raw(b"".join(frame.serialize() for frame in (*frames, data)))
            verify(client.answer(stream).body)

    for pieces, pad, empty in ((1, 0, False), (1, 200, False), (2, 0, False), (4, 50, True), (7, 0, True)):
        await off_loop(lambda how=(pieces, pad, empty): ask(how[0], how[1], empty=how[2]))


async def test_priorities(client: H2Client) -> None:
    def ask() -> None:
        for weight in (1, 256):
            stream = client.begin(priority_weight=weight, priority_depends_on=0, priority_exclusive=weight == 1)
            client.h2.send_data(stream, framed(BODY), end_stream=True)
            client.h2.prioritize(stream + 20, weight=7, depends_on=stream)  # of a stream that is not open
            verify(client.answer(stream).body)

    await off_loop(ask)


async def test_unknown_frames_and_settings_are_passed_over(client: H2Client) -> None:
    def ask() -> None:
        client.raw(bytes((0, 0, 5, 0xBE, 0xFF, 0, 0, 0, 0)) + b"hello")
        client.raw(SettingsFrame(0, settings={0x4A4A: 7, 0xFFFF: 0xFFFFFFFF}).serialize())
        stream = client.begin()
        client.raw(bytes((0, 0, 3, 0x77, 0, 0, 0, 0, stream)) + b"abc")
        client.h2.send_data(stream, framed(BODY), end_stream=True)
        verify(client.answer(stream).body)

    await off_loop(ask)


async def test_pings_come_back_as_they_went(client: H2Client) -> None:
    def ask() -> None:
        client.flush()
        said = [bytes((number,)) * 8 for number in range(2)]  # more may be called a flood
        for each in said:
            client.h2.ping(each)
        back: list[bytes] = []
        while len(back) < len(said):
            client.flush()
            client.read()
            assert not client.over
            back = [event.ping_data for event in client.events if type(event).__name__ == "PingAckReceived"]
        assert back == said
        client.raw(PingFrame(0, opaque_data=b"answers!", flags=["ACK"]).serialize())  # to nothing that was asked
        verify(client.infer(BODY).body)

    await off_loop(ask)


async def test_the_header_tables(gateway: Gateway) -> None:
    """The client's names and values are kept in the table and named by number; the answer's table may be of no size."""

    def ask(size: int) -> None:
        settings = {SettingCodes.HEADER_TABLE_SIZE: size}
        with H2Client(connect(gateway.grpc), settings=settings) as client:
            for number in range(100):
                headers = request_headers(x_same="the same", x_number=str(number), x_part=str(number % 3))
                verify(client.infer(BODY, headers).body)

    for size in (0, 4096, 65536):
        await off_loop(lambda size=size: ask(size))


# --- windows ----------------------------------------------------------------------------------------------------------


async def test_an_answer_through_a_window_of_a_byte(gateway: Gateway) -> None:
    sent = example(2, outputs=("embedding",))

    def ask() -> None:
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: 0}
        with H2Client(connect(gateway.grpc), settings=settings, opens_windows=False) as client:
            stream = client.call(request_of(sent).SerializeToString())
            client.until(lambda: client.answers.get(stream) and client.answers[stream].headers)
            for count in range(1, 30):
                client.h2.increment_flow_control_window(1, stream)
                client.until(lambda count=count: len(client.answers[stream].data) >= count)
                assert len(client.answers[stream].data) == count
            client.h2.increment_flow_control_window(60_000, stream)
            verify(client.answer(stream).body, sent)
            assert max(client.frame_sizes[:29]) == 1

    await off_loop(ask)


async def test_a_window_that_changes_meanwhile(gateway: Gateway) -> None:
    """Shrunk below nothing by SETTINGS while the answer is under way, and opened again."""

    def ask() -> None:
        with H2Client(connect(gateway.grpc), settings={SettingCodes.INITIAL_WINDOW_SIZE: 100}) as client:
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
            stream = client.call(BODY)
            client.flush()
            client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
            verify(client.answer(stream).body)

    await off_loop(ask)


async def test_frames_of_an_answer_are_as_small_as_the_client_takes(workers: Workers, start: Any) -> None:
    sent = example(512)
    async with start(workers.deployment("wide", [(0, 512)])) as gateway:

        def ask() -> None:
            with H2Client(connect(gateway.grpc)) as client:
                body = client.infer(request_of(sent, model="wide").SerializeToString()).body
                check(service_pb2.ModelInferResponse.FromString(body), sent, model="wide", token_dims=384)
                assert max(client.frame_sizes) <= 16384

        await off_loop(ask)


# --- what an answer looks like ----------------------------------------------------------------------------------------


async def test_the_form_of_answers(client: H2Client) -> None:
    def ask() -> None:
        good = client.infer(BODY)
        assert good.headers[":status"] == "200"
        assert good.headers["content-type"].startswith("application/grpc")
        assert good.trailers["grpc-status"] == "0"
        unknown = client.infer(BODY, request_headers("/inference.GRPCInferenceService/Nothing"))
        assert (unknown.headers[":status"], unknown.status) == ("200", "12")
        assert not unknown.data
        wrong = client.infer(one_row(4, model="nobody %").SerializeToString())
        assert wrong.status == "5"
        said = wrong.trailers.get("grpc-message", wrong.headers.get("grpc-message", ""))
        assert said.isascii()
        assert "nobody %25" in said
        verify(client.infer(BODY, request_headers(x_bin="!!! no base64 !!!")).body)

    await off_loop(ask)


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"])
async def test_content_types_of_grpc(client: H2Client, kind: str) -> None:
    verify((await off_loop(lambda: client.infer(BODY, request_headers(content_type=kind)))).body)


@pytest.mark.parametrize(
    "headers",
    [
        request_headers(content_type="text/plain"),
        request_headers(content_type="application/json"),
        [*request_headers(), (":method", "PUT")],
        [("x", "y"), *request_headers()],
        [*request_headers(), ("Upper-Case", "x")],
        [*request_headers(), ("connection", "close")],
        [field for field in request_headers() if field[0] != ":path"],
    ],
    ids=["text", "json", "two methods", "late pseudo header", "upper case", "connection", "no path"],
)
async def test_requests_that_are_not_grpc_end_themselves_alone(gateway: Gateway, headers: list[Any]) -> None:
    """Refused, by a status, a reset or the end of the connection; others go on."""

    def ask() -> None:
        with H2Client(connect(gateway.grpc)) as other, H2Client(connect(gateway.grpc)) as client:
            open_call = other.begin()
            other.flush()
            answer = client.infer(BODY, headers)
            assert client.over or answer.ended
            assert answer.status != "0"
            other.h2.send_data(open_call, framed(BODY), end_stream=True)
            verify(other.answer(open_call).body)

    await off_loop(ask)


@pytest.mark.parametrize("ending", ["nothing", "half a message", "a message too many"])
async def test_unary_calls_with_another_number_of_messages(client: H2Client, ending: str) -> None:
    """Too few are refused; what comes after the first may be passed over. The connection is good for the next call."""
    data = {"nothing": b"", "half a message": framed(BODY)[:-9], "a message too many": framed(BODY) * 2}[ending]

    def ask() -> None:
        stream = client.begin()
        client.h2.send_data(stream, data, end_stream=True)
        answer = client.answer(stream)
        assert answer.ended
        assert answer.status != "0" or ending == "a message too many"
        verify(client.infer(BODY).body)

    await off_loop(ask)


# --- the end of a connection ------------------------------------------------------------------------------------------


async def test_a_goaway_of_the_client(workers: Workers, start: Any) -> None:
    """What is open is answered; then the gateway may close."""
    async with start(workers.deployment("slow", [(0, 64)])) as gateway:
        sent = example(20)

        def ask() -> None:
            with H2Client(connect(gateway.grpc)) as client:
                stream = client.call(request_of(sent, model="slow").SerializeToString())
                client.flush()
                # Not through h2, which would send nothing more after it.
                client.raw(bytes((0, 0, 8, 7, 0, 0, 0, 0, 0)) + bytes(8))
                check(service_pb2.ModelInferResponse.FromString(client.answer(stream).body), sent, model="slow")

        await off_loop(ask)


async def test_a_goaway_of_the_gateway(workers: Workers, start: Any) -> None:
    """On SIGTERM it says GOAWAY without an error, answers what is open, and closes."""
    async with start(workers.deployment("slow", [(0, 64)])) as gateway:
        sent = example(20)

        def ask() -> None:
            frames = []
            with RawHttp2(gateway.grpc) as client:  # h2 takes nothing any more after the first of two GOAWAYs
                stream = client.call(request_of(sent, model="slow").SerializeToString())
                client.pings_back()
                os.kill(gateway.pid, signal.SIGTERM)
                with contextlib.suppress(EOFError, ConnectionError):
                    while True:
                        kind, flags, number, payload = client.frame()
                        frames.append((kind, number, payload))
                        if kind == PING and not flags & ACK:
                            client.send(PING, ACK, 0, payload)
            goaways = [payload for kind, _, payload in frames if kind == GOAWAY]
            assert goaways
            assert {payload[4:8] for payload in goaways} == {bytes(4)}  # NO_ERROR
            answer = b"".join(payload for kind, number, payload in frames if kind == DATA and number == stream)
            check(service_pb2.ModelInferResponse.FromString(answer[5:]), sent, model="slow")

        await off_loop(ask)
        assert await gateway.process.wait() == 0
