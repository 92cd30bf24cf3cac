"""The log of a process: where the current process's part begins, an excerpt for error messages, and the size limit."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from arlo.errors import explain

EXCERPT_BYTES = 4096
LIMIT_BYTES = 64 << 20  # of a log; as much again is kept of what came before


class LogFile:
    """Several processes append to the file in turn; `start` is where the current one's part begins."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start = 0

    def begin(self, heading: str) -> str | None:
        """Write a line, after which the next process's part begins. Returns the reason if that failed, else None."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as log:
                log.write(f"== {heading}\n")
                log.flush()
                self.start = log.tell()
        except OSError as error:
            with contextlib.suppress(OSError):
                self.start = self.path.stat().st_size
            error.filename = error.filename or self.path
            return explain(error)
        return None

    def limit(self) -> bool:
        """Once the log exceeds LIMIT_BYTES, move its content to `{name}.1`; returns whether it did so. Blocks.

        The process keeps the file open and appends to it, so the file is copied and emptied; output written in between
        is lost. If the disk has no room for the copy, the log is emptied anyway.
        """
        try:
            if self.path.stat().st_size <= LIMIT_BYTES:
                return False
        except OSError:
            return False
        old, scratch = self.path.with_name(f"{self.path.name}.1"), self.path.with_name(f"{self.path.name}.tmp")
        try:
            shutil.copyfile(self.path, scratch)
            scratch.replace(old)
        except OSError:
            with contextlib.suppress(OSError):
                scratch.unlink()
        with contextlib.suppress(OSError):
            os.truncate(self.path, 0)
        self.start = 0
        return True

    def excerpt(self) -> str:
        """The first lines of this process's log, which show a bad argument, and the last, which show other errors."""
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
