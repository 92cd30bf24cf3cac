"""Attacks with headers: blocks without end, blocks that unpack to much more than was sent."""

from __future__ import annotations

import random

from hyperframe.frame import ContinuationFrame, HeadersFrame

from tests.fakes.attacks.hit import LINGER_S, Hit, attack
from tests.fakes.attacks.offender import block_of

FRAME = 16384
AT_LEAST = 8_000_000  # of a header without end: less of it is not felt
ENTRY = 4000  # of a table that holds 4,096 bytes


def literal(name: bytes, value: bytes, *, kind: int = 0) -> bytes:
    """A header field as a literal; kind 0x40: kept in the table."""
    return bytes((kind,)) + _sized(name) + _sized(value)


def _sized(text: bytes) -> bytes:
    return length(len(text)) + text


def length(size: int) -> bytes:
    """An integer of HPACK with a prefix of seven bits."""
    if size < 127:
        return bytes((size,))
    out, size = bytearray((127,)), size - 127
    while size >= 128:
        out.append(size % 128 | 128)
        size //= 128
    return bytes((*out, size))


def continued(stream: int, block: bytes, *, end: bool) -> list[bytes]:
    """CONTINUATION frames that carry the block; the last says that it was the last when `end`."""
    pieces = [block[i : i + FRAME] for i in range(0, len(block), FRAME)]
    frames = [ContinuationFrame(stream, data=piece) for piece in pieces]
    if end and frames:
        frames[-1].flags.add("END_HEADERS")
    return [frame.serialize() for frame in frames]


def _without_end(hit: Hit, first: bytes, more: bytes, total: int) -> None:
    """A block that begins with `first` and goes on with `more`, for so many bytes and without an end."""
    while True:
        with hit.open() as offender:
            offender.heard(LINGER_S)  # the greetings are over: nothing else may stand within a block
            offender.mute = True
            stream = offender.stream()
            offender.say(HeadersFrame(stream, data=first).serialize())
            frames = b"".join(continued(stream, more, end=False))
            for _ in range(max(1, total // len(frames))):
                if not offender.say(frames):
                    break
            offender.hear(LINGER_S)
        if not hit.goes_on():
            return


@attack(refused=True)
def continuation_flood(hit: Hit) -> None:
    """30 MB of CONTINUATION frames full of small headers, that never end."""
    field = literal(b"x-a", b"b")
    _without_end(hit, block_of(), field * (FRAME // len(field)), max(AT_LEAST, hit.count(30_000_000)))


@attack(refused=True)
def endless_headers(hit: Hit) -> None:
    """One header whose value is of 30 MB, in CONTINUATION frames."""
    total = max(AT_LEAST, hit.count(30_000_000))
    first = block_of() + b"\0" + _sized(b"x-long") + length(2 * total)
    _without_end(hit, first, b"v" * FRAME, total)


def _blocks(hit: Hit, first: bytes, block: bytes) -> None:
    """Calls whose headers are `block`, after one whose headers are `first`; 64 of them on a connection."""
    while True:
        with hit.open() as offender:
            stream = offender.stream()
            offender.say(offender.headers_of(stream, first, end=True))
            for _ in range(hit.count(64)):
                stream = offender.stream()
                said = HeadersFrame(stream, data=block[:FRAME])
                said.flags.add("END_STREAM")
                if len(block) <= FRAME:
                    said.flags.add("END_HEADERS")
                rest = continued(stream, block[FRAME:], end=True)
                if not offender.say(b"".join((said.serialize(), *rest))):
                    break
            offender.heard(5 * LINGER_S)
        if not hit.goes_on():
            return


@attack(refused=True)
def header_bomb_index(hit: Hit) -> None:
    """A header of 4 kB kept in the table, named 15,000 times by one byte each: 60 MB a call."""
    entry = literal(b"x-e", b"v" * (ENTRY - 35), kind=0x40)
    # The newest entry of the table has the index 62, behind the 61 that everyone has.
    _blocks(hit, block_of() + entry, block_of() + bytes((0x80 | 62,)) * 15_000)


@attack(refused=True)
def header_bomb_many(hit: Hit) -> None:
    """5,000 headers of some bytes in a call."""
    fields = b"".join(literal(b"x-%d" % number, b"v") for number in range(5000))
    _blocks(hit, block_of(), block_of() + fields)


@attack(refused=True)
def header_bomb_huge(hit: Hit) -> None:
    """One header of 1 MB in a call."""
    _blocks(hit, block_of(), block_of() + literal(b"x-huge", b"v" * 1_000_000))


@attack()
def bad_bin_header(hit: Hit) -> None:
    """A header `x-bin` that is not base64, between good calls of the same connection: these must be answered."""
    while True:
        with hit.open() as offender:
            before = offender.call(hit.small)
            bad = offender.call(hit.small, {"x-bin": "!!! no base64 !!!"})
            after = offender.call(hit.small)
            offender.good(before)
            offender.answered(bad, 2.0)
            offender.good(after)
        if not hit.goes_on():
            return


@attack(refused=True)
def garbage(hit: Hit) -> None:
    """Random bytes: at once, and after a good beginning."""
    dice = random.Random(1)
    while True:
        for greets in (False, True):
            with hit.open(greets=greets) as offender:
                offender.say(dice.randbytes(hit.count(100_000)))
                offender.hear(LINGER_S / 4)
        if not hit.goes_on():
            return
