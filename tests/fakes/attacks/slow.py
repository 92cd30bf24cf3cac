"""Attacks that take their time: one byte now and then, on many connections at once."""

from __future__ import annotations

import contextlib
import time

from hyperframe.frame import ContinuationFrame, HeadersFrame

from tests.fakes.attacks.hit import Hit, attack
from tests.fakes.attacks.offender import PREFACE, Offender, block_of, message

CONNECTIONS = 200
EVERY_S = 0.1


def _drip(hit: Hit, offenders: list[Offender], drops: list[list[bytes]]) -> None:
    """The next drop of each, again and again, until the time is up; then nothing more."""
    place = 0
    while hit.goes_on():
        for offender, mine in zip(offenders, drops, strict=True):
            if place < len(mine):
                offender.say(mine[place])
            offender.look(0)
        place += 1
        time.sleep(max(0.0, min(EVERY_S, hit.left_s())))


@attack()
def slow_preface(hit: Hit) -> None:
    """200 connections that greet byte by byte."""
    drops = [bytes((byte,)) for byte in PREFACE]
    with contextlib.ExitStack() as stack:
        offenders = [stack.enter_context(hit.open(greets=False)) for _ in range(hit.count(CONNECTIONS))]
        for offender in offenders:
            offender.mute = True
        _drip(hit, offenders, [drops] * len(offenders))


@attack()
def slow_headers(hit: Hit) -> None:
    """200 connections, half of which send a HEADERS frame byte by byte, the others CONTINUATIONs of one byte."""
    block = block_of({"x-filler": "f" * 300})  # 40 s of it: longer than any limit of headers
    with contextlib.ExitStack() as stack:
        offenders = [stack.enter_context(hit.open()) for _ in range(hit.count(CONNECTIONS))]
        drops = []
        for number, offender in enumerate(offenders):
            offender.heard(1.0)  # the greetings are over: nothing else may stand within a frame
            offender.mute = True
            stream = offender.stream()
            if number % 2:
                whole = offender.headers_of(stream, block)
                drops.append([bytes((byte,)) for byte in whole])
            else:
                offender.say(HeadersFrame(stream, data=block[:1]).serialize())
                drops.append([ContinuationFrame(stream, data=bytes((byte,))).serialize() for byte in block[1:]])
        _drip(hit, offenders, drops)


@attack()
def slow_body(hit: Hit) -> None:
    """200 connections that each send a message byte by byte."""
    with contextlib.ExitStack() as stack:
        offenders = [stack.enter_context(hit.open()) for _ in range(hit.count(CONNECTIONS))]
        drops = []
        for offender in offenders:
            stream = offender.stream()
            offender.say(offender.headers_of(stream, block_of()))
            body = message(hit.small)
            drops.append([offender.data_of(stream, bytes((byte,)), end=False) for byte in body])
        _drip(hit, offenders, drops)
