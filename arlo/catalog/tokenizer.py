"""The tokenizer of a compiled model, as bytes: the gateway turns text into token ids with it."""

from __future__ import annotations

import functools
from pathlib import Path

from arlo.catalog.manifest import Manifest

# WordPiece vocabularies take up to 3 MiB, Unigram ones of many languages 17. A deployment, which may hold many models,
# must fit into one message of 64 MiB.
MOST_BYTES = 24 << 20


def read_tokenizer(repository: Path, manifest: Manifest) -> bytes:
    """The bytes of a model's tokenizer.json. None if it has none, or its file is gone or too large: it takes ids."""
    if manifest.tokenizer is None:
        return b""
    path = repository / manifest.tokenizer
    try:
        file = path.stat()
    except OSError:
        return b""
    return _read(path, file.st_mtime_ns) if file.st_size <= MOST_BYTES else b""


@functools.lru_cache(maxsize=64)
def _read(path: Path, changed: int) -> bytes:
    """The bytes of a file as of that time, cached because a deployment is written repeatedly."""
    return path.read_bytes()
