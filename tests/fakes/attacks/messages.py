"""Attacks with messages: too large, never whole, packed, and with answers that nobody reads."""

from __future__ import annotations

import contextlib
import struct
import time
import zlib

from hyperframe.frame import SettingsFrame, WindowUpdateFrame

from tests.fakes.attacks.hit import LINGER_S, Hit, attack
from tests.fakes.attacks.offender import Offender, block_of, message

PIECE = bytes(1 << 20)


def gzip_of_zeros(mb: int) -> bytes:
    """What unpacks to so many MB of zeros: one block again and again. Its sum is wrong, which is seen too late."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(PIECE) + packer.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\x03"
    return head + block * mb + end + struct.pack("<II", 0, (mb << 20) & 0xFFFFFFFF)


@attack(refused=True)
def gzip_bomb(hit: Hit) -> None:
    """Messages of 1 MB that unpack to 1 GB."""
    body = message(gzip_of_zeros(hit.count(1024)), compressed=True)
    block = block_of({"grpc-encoding": "gzip"})
    while True:
        with hit.open() as offender:
            for _ in range(4):
                stream = offender.stream()
                offender.say(offender.headers_of(stream, block))
                _feed_all(hit, offender, stream, body)
                if not offender.answered(stream, 10 * LINGER_S):
                    break
        if not hit.goes_on():
            return


def _feed_all(hit: Hit, offender: Offender, stream: int, data: bytes) -> None:
    """The data as the windows let it through, until the call is over or nothing moves for a while."""
    at, moved_s = 0, time.monotonic()
    while at < len(data) and stream not in offender.finished and not offender.over:
        if count := offender.feed(stream, data[at : at + len(PIECE)]):
            at, moved_s = at + count, time.monotonic()
        elif time.monotonic() - moved_s > LINGER_S:
            return
        else:
            offender.look(0.05)


@attack(refused=True)
def huge_message_declared(hit: Hit) -> None:
    """A message that says it has 4 GB, and as much of it as is taken, up to 100 MB."""
    block = block_of()
    while True:
        with hit.open() as offender:
            stream = offender.stream()
            offender.say(offender.headers_of(stream, block))
            _feed_all(hit, offender, stream, message(PIECE, size=(1 << 32) - 1) + PIECE * hit.count(100))
            offender.answered(stream, 10 * LINGER_S)
        if not hit.goes_on():
            return


@attack(refused=True)
def half_open(hit: Hit) -> None:
    """Calls that say their message has 2 GB, and then nothing: 1,000 in a round."""
    block = block_of()
    while True:
        with contextlib.ExitStack() as stack:
            offenders = [stack.enter_context(hit.open()) for _ in range(hit.count(100))]
            for offender in offenders:
                for _ in range(10):
                    stream = offender.stream()
                    said = offender.data_of(stream, message(b"", size=2_000_000_000), end=False)
                    offender.say(offender.headers_of(stream, block) + said)
            for offender in offenders:
                offender.hear(LINGER_S / len(offenders))
        if not hit.goes_on():
            return


@attack()
def half_closed(hit: Hit) -> None:
    """Connections closed on one side with calls open on them: 100 in a round."""
    block = block_of()
    while True:
        with contextlib.ExitStack() as stack:
            offenders = [stack.enter_context(hit.open()) for _ in range(hit.count(100))]
            for offender in offenders:
                for _ in range(10):
                    offender.say(offender.headers_of(offender.stream(), block))
                offender.half_close()
            for offender in offenders:
                offender.hear(LINGER_S / len(offenders))
        if not hit.goes_on():
            return


def _partial(hit: Hit, connections: int, streams: int, size: int) -> None:
    """Messages that lack their last byte, on many calls of some connections, held for the time of the attack."""
    block = block_of()
    with contextlib.ExitStack() as stack:
        offenders = [stack.enter_context(hit.open()) for _ in range(connections)]
        for offender in offenders:
            for _ in range(streams):
                stream = offender.stream()
                offender.say(offender.headers_of(stream, block))
                body = message(bytes(size - 1), size=size)
                _feed_all(hit, offender, stream, body)
                if offender.over or not hit.goes_on():
                    break
        while hit.goes_on():
            time.sleep(0.05)
            for offender in offenders:
                offender.look(0)


@attack()
def many_partial_messages(hit: Hit) -> None:
    """Messages of 8 MB that lack their last byte, 2 GB of them on ten connections."""
    _partial(hit, 10, hit.count(25), 8 << 20)


def _large_answers(hit: Hit, *, window: int) -> None:
    """`window`: of each call; what it lets through is read."""
    settings = {SettingsFrame.INITIAL_WINDOW_SIZE: window}
    with contextlib.ExitStack() as stack:
        offenders = [stack.enter_context(hit.open(settings=settings, opens_windows=False)) for _ in range(8)]
        for offender in offenders:
            offender.say(WindowUpdateFrame(0, window_increment=1 << 30).serialize() if window else b"")
        for _ in range(hit.count(200)):
            for offender in offenders:
                stream = offender.stream()
                offender.say(offender.headers_of(stream, block_of()))
                _feed_all(hit, offender, stream, message(hit.wide))
                offender.say(offender.data_of(stream, b""))
        while hit.goes_on():
            came = [offender.look(0) for offender in offenders]
            if not any(came):
                time.sleep(0.05)


@attack()
def taken_answers(hit: Hit) -> None:
    """No attack: answers of 256 KB and more that are read, 1,600 of them on eight connections."""
    _large_answers(hit, window=4 << 20)


@attack(control=taken_answers)
def unread_answers(hit: Hit) -> None:
    """Answers of 256 KB and more for which there is no window: 1,600 of them on eight connections."""
    _large_answers(hit, window=0)
