"""Kernel timings of TensorRT's builds, kept so that later builds need not measure again.

For TensorRT only. TensorRT-RTX measures nothing while it builds: its timing caches have no effect, as it documents.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class TimingCache:
    """A timing cache in the file of one version and GPU. A file that is unusable counts as none."""

    def __init__(self, folder: Path, *, version: str, gpu: str) -> None:
        """gpu: its name; builds on another one find another file."""
        self.path = folder / f"timing-{version}-{re.sub(r'[^A-Za-z0-9]+', '-', gpu)}.bin"
        self._cache: Any = None

    def attach(self, config: Any, log: Any) -> str:
        """Let the build with `config` use it; `reused`, or `new` when it starts empty."""
        content = self._read()
        for tried in (content, b""):
            self._cache = config.create_timing_cache(tried)
            # A cache of another version or GPU is refused, not taken with a warning.
            if self._cache is not None and config.set_timing_cache(self._cache, False):
                complaints = log.take()  # of a broken file, which TensorRT replaces by an empty cache
                return "reused" if tried and not complaints else "new"
        log.take()
        self._cache = None
        return "none"

    def save(self, config: Any, log: Any) -> None:
        """Add the timings to the file, keeping those that other builds wrote meanwhile. Readers see a whole file."""
        if self._cache is None:
            return
        with contextlib.suppress(OSError), self._locked():
            if content := self._read():
                other = config.create_timing_cache(content)
                if other is not None:
                    self._cache.combine(other, False)
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".timing-")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(self._cache.serialize())
                Path(name).replace(self.path)
            finally:
                Path(name).unlink(missing_ok=True)
        log.take()

    def _read(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError:
            return b""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self.path.with_suffix(".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield
