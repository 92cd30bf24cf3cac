"""Processes that a test started, found by a mark in their environment, which all their children inherit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arlo.clock import monotonic_s

MARK = "ARLO_TEST_MARK"


def marked(mark: str) -> dict[int, str]:
    """pid -> command of every process that was started with this mark in its environment, and is not a zombie."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


async def until(condition: Callable[[], Any], what: str, *, timeout_s: float = 20.0, every_s: float = 0.01) -> Any:
    """Wait for something that has no event of its own; `condition` may be async. Returns what it returned."""
    deadline_s = monotonic_s() + timeout_s
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        assert monotonic_s() < deadline_s, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(every_s)


async def nothing_left(mark: str) -> None:
    await until(lambda: not marked(mark), f"processes left: {marked(mark)}")


def kill_marked(mark: str) -> None:
    """Kill what is left."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
