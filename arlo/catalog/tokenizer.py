"""The tokenizer of a compiled model, as bytes: the gateway makes text into token ids with it."""

from __future__ import annotations

import functools
from pathlib import Path

from arlo.catalog.manifest import Manifest


def read_tokenizer(repository: Path, manifest: Manifest) -> bytes:
    """The bytes of a model's tokenizer.json; none where there is none, or its file is gone: then it takes ids."""
    if manifest.tokenizer is None:
        return b""
    path = repository / manifest.tokenizer
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        return b""
    return _read(path, changed)


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: int) -> bytes:
    """Of a file as it was at that time: a deployment is written again and again."""
    return path.read_bytes()
