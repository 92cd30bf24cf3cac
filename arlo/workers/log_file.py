"""A worker's log: where the process that runs now began in it, and an excerpt for error messages."""

from __future__ import annotations

import os
from pathlib import Path

EXCERPT_BYTES = 4096


class LogFile:
    """Several processes append to the file in turn; `start` is where the current one's part begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start = 0

    def begin(self, heading: str) -> None:
        """Write a line; what follows it is the next process's."""
        with self.path.open("a") as log:
            log.write(f"== {heading}\n")
            self.start = log.tell()

    def excerpt(self) -> str:
        """The first lines of this process's log (a bad argument shows there) and the last (all else does)."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                first = file.read(EXCERPT_BYTES)
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - EXCERPT_BYTES, self.start + len(first)))
                last = file.read()
        except OSError as error:
            return f"(no log: {error})"
        lines = (first + last).decode(errors="replace").splitlines()
        return "\n".join(lines if len(lines) <= 20 else [*lines[:4], "...", *lines[-15:]])
