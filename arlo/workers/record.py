"""The files of a process in a run folder, by which a later owner can take it over.

`{name}.process.json` describes the process (readable by the user only: it may hold a key), `{name}.sock` is its guard's
socket. The owner removes both when it ends the process; `take_over` judges the files of a dead owner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from arlo.workers.process import GuardedProcess

VERSION = 1
SUFFIX = ".process.json"
SOCKET_SUFFIX = ".sock"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One process. `details` are the owner's own, of JSON's types."""

    pid: int  # of the program; for people and tests
    fingerprint: str  # of everything that must match for a later owner to take this process over
    details: dict[str, Any]


class RecordFile:
    """The record of the process called `name` in `run_dir`."""

    def __init__(self, run_dir: Path, name: str) -> None:
        self.path = run_dir / f"{name}{SUFFIX}"
        self.socket = run_dir / f"{name}{SOCKET_SUFFIX}"

    def write(self, record: ProcessRecord) -> None:
        """Replace the record atomically; mode 0600."""
        temporary = self.path.with_suffix(".tmp")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump({"version": VERSION, **dataclasses.asdict(record)}, file, indent=1)
        temporary.replace(self.path)

    def read(self) -> ProcessRecord | None:
        """The record; None when it is missing or unreadable, such as one of another version."""
        try:
            raw = json.loads(self.path.read_text())
            if raw.pop("version") != VERSION:
                return None
            return ProcessRecord(pid=int(raw["pid"]), fingerprint=str(raw["fingerprint"]), details=dict(raw["details"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def remove(self) -> None:
        """Remove the record. Idempotent. The next owner judges a record that cannot be removed."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    async def take_over(self, wanted: ProcessRecord | None, *, stop_timeout_s: float) -> GuardedProcess | None:
        """The running process if it matches `wanted`; otherwise (always for None) end it cleanly and return None.

        WorkerError when its owner is alive, or when it does not end.
        """
        process = await GuardedProcess.adopt(self.socket)
        if process is not None and wanted is not None and wanted.pid == process.pid:
            return process
        if process is not None:
            await process.stop(timeout_s=stop_timeout_s)
        self.remove()
        with contextlib.suppress(OSError):
            self.socket.unlink()  # of a guard that was killed
        return None


def recorded_names(run_dir: Path) -> set[str]:
    """The names of the processes that left a record or a socket in `run_dir`."""
    suffixes = (SUFFIX, SOCKET_SUFFIX)
    return {path.name.removesuffix(s) for s in suffixes for path in run_dir.glob(f"*{s}")}


def fingerprint(**parts: Any) -> str:
    """A short hash over values of JSON's types."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
