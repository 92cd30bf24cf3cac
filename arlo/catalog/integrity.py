"""The check that a repository still holds the files that were compiled and verified."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from arlo.catalog.manifest import FILE_NAME, Manifest
from arlo.errors import ConfigError

SHOWN = 5  # files named in a message


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
