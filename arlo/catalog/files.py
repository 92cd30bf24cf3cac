"""The files of a repository: the check that they are those that were compiled and verified; its tokenizer."""

from __future__ import annotations

import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from arlo.catalog.manifest import FILE_NAME, Manifest
from arlo.errors import ConfigError

SHOWN = 5  # files named in a message
# WordPiece vocabularies take up to 3 MiB, Unigram ones of many languages 17. A deployment, which may hold many models,
# must fit into one message of 64 MiB.
MOST_BYTES = 24 << 20


def check_files(repository: Path, manifest: Manifest, *, must_exist: bool = True) -> None:
    """Compare the hashes of all files that `arlo.json` lists. A ConfigError names the files that differ.

    `must_exist`: a missing file counts as different (if other machines serve, files may exist only there).
    """
    wanted = {path: digest for runtime in manifest.runtimes for path, digest in runtime.files.items()}
    if manifest.tokenizer and (digest := manifest.options.get("tokenizer_sha256")):
        wanted[manifest.tokenizer] = str(digest)

    def differs(path: str) -> str | None:
        try:
            with (repository / path).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return f"{path} is missing" if must_exist else None
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        return None if found == wanted[path] else f"{path} has changed"

    with ThreadPoolExecutor(max_workers=4) as threads:
        problems = [problem for problem in threads.map(differs, sorted(wanted)) if problem is not None]
    if problems:
        more = f", and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
        raise ConfigError(
            f"{repository} is not what {FILE_NAME} says was compiled and verified: "
            f"{'; '.join(problems[:SHOWN])}{more}. Compile it again"
        )


def read_tokenizer(repository: Path, manifest: Manifest) -> bytes:
    """The bytes of a model's tokenizer.json, with which the gateway turns text into token ids.

    Empty if it has none, or its file is gone or too large: it takes ids.
    """
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
