"""Attacks with many cheap things: frames, streams, connections."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import random
import selectors
import socket
import time

from hyperframe.frame import DataFrame, PingFrame, PriorityFrame, RstStreamFrame, SettingsFrame, WindowUpdateFrame

from tests.fakes.attacks.hit import LINGER_S, Hit, attack
from tests.fakes.attacks.offender import Offender, block_of, message

CHUNK = 500  # frames that are said at once


@attack()
def cancels_and_short_deadlines(hit: Hit) -> None:
    """Rows cancelled, or past their deadline of some milliseconds, near their answer: 3,000 in a round."""
    dice = random.Random(1)
    while True:
        for _ in range(max(1, hit.count(3000) // 100)):
            with hit.open() as offender:
                for _ in range(10):
                    short = {"grpc-timeout": f"{dice.randrange(1000, 12_000)}u"}
                    streams = [offender.call(hit.small, short if number % 2 else None) for number in range(10)]
                    time.sleep(dice.uniform(0, 0.012))
                    offender.say(b"".join(RstStreamFrame(stream, error_code=8).serialize() for stream in streams[::2]))
                    for stream in streams[1::2]:
                        offender.answered(stream, LINGER_S)
        if not hit.goes_on():
            return


def _streams(hit: Hit, count: int, *, resets: bool) -> None:
    block = block_of()
    while True:
        with hit.open() as offender:
            for _ in range(0, hit.count(count), CHUNK):
                said = bytearray()
                for _ in range(CHUNK):
                    stream = offender.stream()
                    said += offender.headers_of(stream, block)
                    if resets:
                        said += RstStreamFrame(stream, error_code=8).serialize()
                if not offender.say(bytes(said)):
                    break
            offender.heard(5 * LINGER_S)
        if not hit.goes_on():
            return


@attack(refused=True)
def streams_100000(hit: Hit) -> None:
    """100,000 calls opened on one connection, whatever it says of its limit, and never ended."""
    _streams(hit, 100_000, resets=False)


@attack(refused=True)
def rapid_reset_50000(hit: Hit) -> None:
    """50,000 calls opened and reset at once on one connection."""
    _streams(hit, 50_000, resets=True)


def _frames(hit: Hit, frames: bytes, *, reads: bool, opens: bool = False) -> None:
    """The same frames again and again on one connection, behind the headers of a call when `opens`."""
    while True:
        with hit.open(reads=reads) as offender:
            if opens:
                offender.say(offender.headers_of(offender.stream(), block_of()))
            for _ in range(hit.count(4000)):
                if not offender.say(frames) or not hit.goes_on():
                    break
            offender.look(0)
        if not hit.goes_on():
            return


@attack(refused=True)
def empty_frames(hit: Hit) -> None:
    """DATA frames of no bytes that never end a call."""
    _frames(hit, DataFrame(1).serialize() * CHUNK, reads=True, opens=True)


@attack(refused=True)
def ping_flood(hit: Hit) -> None:
    """PINGs, whose answers are not read."""
    _frames(hit, PingFrame(0, opaque_data=b"pingping").serialize() * CHUNK, reads=False)


@attack(refused=True)
def settings_flood(hit: Hit) -> None:
    """SETTINGS, whose answers are not read."""
    frame = SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 70_000}).serialize()
    _frames(hit, frame * CHUNK, reads=False)


@attack(refused=True)
def window_update_flood(hit: Hit) -> None:
    """WINDOW_UPDATEs of one byte, of the connection and of a call."""
    pair = WindowUpdateFrame(0, window_increment=1).serialize() + WindowUpdateFrame(1, window_increment=1).serialize()
    _frames(hit, pair * (CHUNK // 2), reads=True, opens=True)


@attack(refused=True)
def priority_flood(hit: Hit) -> None:
    """PRIORITY frames that hang streams, which nobody has opened, on one another."""
    frames = [PriorityFrame(number + 2, depends_on=number, stream_weight=3).serialize() for number in range(1, 999, 2)]
    _frames(hit, b"".join(frames), reads=True)


@attack()
def one_byte_frames(hit: Hit) -> None:
    """Good requests in DATA frames of one byte: these must be answered."""
    block = block_of()
    while True:
        with hit.open() as offender:
            for _ in range(hit.count(100)):
                stream = offender.stream()
                body = offender.data_of(stream, message(hit.small), piece=1)
                if not offender.say(offender.headers_of(stream, block) + body):
                    break
                offender.good(stream)
                if not hit.goes_on():
                    break
        if not hit.goes_on():
            return


@attack()
def connect_flood(hit: Hit) -> None:
    """Connections that are opened, with or without a greeting, and closed or reset at once: 2,000 in a round."""
    while True:
        for number in range(hit.count(2000)):
            hit.open(greets=number % 2 == 0).leave(reset=number % 4 < 2)
        if not hit.goes_on():
            return


def _many(hit: Hit, stack: contextlib.ExitStack, count: int) -> list[Offender]:
    return [stack.enter_context(hit.open()) for _ in range(count)]


def _hold(hit: Hit, offenders: list[Offender]) -> None:
    """Looks only where something came: two thousand looks each time would take a core from all others."""
    with selectors.DefaultSelector() as selector:
        for offender in offenders:
            if not offender.over:
                selector.register(offender.fileno(), selectors.EVENT_READ, offender)
        while True:
            for key, _ in selector.select(max(0.0, min(0.1, hit.left_s()))):
                key.data.look(0)
                if key.data.over:
                    selector.unregister(key.fd)
            if not hit.goes_on():
                return


def _answer_greetings(listener: socket.socket) -> None:
    held = []
    listener.settimeout(1)
    while (attack := multiprocessing.parent_process()) is not None and attack.is_alive():
        with contextlib.suppress(TimeoutError):
            held.append(listener.accept()[0])
            held[-1].sendall(SettingsFrame(0).serialize())


@attack()
def idle_elsewhere(hit: Hit) -> None:
    """No attack: as many connections, to a program of the attack's own that answers their greetings."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        server = multiprocessing.get_context("fork").Process(target=_answer_greetings, args=(listener,), daemon=True)
        server.start()
        elsewhere = dataclasses.replace(hit, address=listener.getsockname())
        with contextlib.ExitStack() as stack:
            _hold(elsewhere, _many(elsewhere, stack, hit.count(2000)))
        server.kill()


@attack(control=idle_elsewhere)
def idle_2000(hit: Hit) -> None:
    """2,000 connections that greet and say nothing more."""
    with contextlib.ExitStack() as stack:
        _hold(hit, _many(hit, stack, hit.count(2000)))


@attack(descriptors=256)
def descriptors(hit: Hit) -> None:
    """400 connections where there are 256 descriptors, for a while; when they are gone, it must accept again."""
    with contextlib.ExitStack() as stack:
        _hold(hit, _many(hit, stack, 400))
