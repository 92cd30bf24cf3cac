"""The Python backend's stub processes: finding them, and detecting a dead one that Triton has not noticed."""

from __future__ import annotations

import contextlib
from pathlib import Path

SCAN_EVERY = 10  # checks between two looks for new stubs: a server has some 50 threads, each with a list of children


class StubWatch:
    """Watches the stubs of one server.

    Triton keeps a runtime "ready" whose Python stub has died, fails each of its requests after a second, and can't
    unload it. A stub that is a zombie at two checks in a row has died without Triton's notice.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._checks = 0
        self._children: set[int] = set()
        self._ended: set[int] = set()

    def scan_soon(self) -> None:
        """Make the next check look for new stubs, after a runtime was loaded."""
        self._checks = 0

    def check(self) -> int | None:
        """The pid of a stub that has died unnoticed. Call it regularly; it is cheap without stubs."""
        if self._checks % SCAN_EVERY == 0:
            self._children = children(self._pid)
        self._checks += 1
        ended = {child for child in self._children if state(child) == "Z"}
        unnoticed = ended & self._ended
        self._ended = ended
        return min(unnoticed) if unnoticed else None


def children(pid: int) -> set[int]:
    """The children of a process, of all its threads; empty where the kernel does not list them."""
    found: set[int] = set()
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(int(child) for child in listing.read_text().split())
    return found


def state(pid: int) -> str:
    """The kernel's letter for a process's state, "Z" for a zombie; "X" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
