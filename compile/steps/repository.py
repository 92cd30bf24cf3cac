"""Step 12, repository: the Triton model repository, written next to its destination and moved there in one step.

Input: the built engines. Output: a folder per runtime (config.pbtxt, the model code if any and the engine's files in
1/), tokenizer.json and the manifest arlo.json, last. Cache key: none, it is links and small files. Check: the
destination is free or an earlier build; weights are hard-linked, so eight lengths take the disk space of one.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from arlo.catalog.manifest import FILE_NAME
from arlo.compile.cache import Entry, Hasher, link_or_copy, remove_if_orphaned, temporary_folder
from arlo.errors import CompileError, ConfigError


def building_prefix(out: Path) -> str:
    """Name prefix of temporary folders next to `out`; the next build removes those of killed builds."""
    return f".{out.name}.building-"


@contextlib.contextmanager
def staging(out: Path) -> Iterator[Path]:
    """A new folder next to `out`, removed afterwards unless `publish` moved it. ConfigError when `out` is unusable."""
    out = out.resolve()
    if out.exists():
        if not out.is_dir():
            raise ConfigError(f"{out} is a file: name a folder")
        if any(out.iterdir()) and not (out / FILE_NAME).is_file():
            raise ConfigError(f"{out} is not empty and no earlier build ({FILE_NAME} is missing): name another folder")
    prefix = building_prefix(out)
    with contextlib.ExitStack() as stack:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            for leftover in out.parent.glob(f"{glob.escape(prefix)}*"):
                remove_if_orphaned(leftover)
            folder = stack.enter_context(temporary_folder(out.parent, prefix))
        except OSError as error:
            raise ConfigError(f"{out} cannot be written ({error}): name another folder with --out") from None
        yield folder


class RepositoryWriter:
    """Writes the model folders into the staging folder and remembers the hash of each file."""

    def __init__(self, folder: Path, hasher: Hasher) -> None:
        self._folder = folder
        self._hasher = hasher
        self._placed: dict[tuple[int, int], Path] = {}  # identity of a cached file -> where it lies here already

    def model(self, name: str, config: str, code: Sequence[Path], built: Entry) -> dict[str, str]:
        """Write one runtime; returns path (relative to the repository) -> sha256. `code` may be empty."""
        version = self._folder / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config)
        for path in code:
            shutil.copyfile(path, version / path.name)
        # An engine may reject files with several links: then its build step copied, and so does this one.
        place = self._link if built.meta.get("share", True) else shutil.copyfile
        for file in built.files:
            place(built.folder / file, version / file)
            self._hasher.known(version / file, built.files[file])  # large, and hashed when it was built
        names = [*(path.name for path in code), *built.files]
        paths = [version.parent / "config.pbtxt", *(version / name for name in names)]
        return {str(path.relative_to(self._folder)): self._hasher.file(path) for path in paths}

    def file(self, source: Path, name: str) -> None:
        """Copy one file to the root of the repository."""
        shutil.copyfile(source, self._folder / name)

    def _link(self, source: Path, target: Path) -> None:
        stat = source.stat()
        identity = (stat.st_dev, stat.st_ino)
        # A cache on another file system: the first copy is linked by the others.
        link_or_copy(self._placed.get(identity, source), target)
        self._placed.setdefault(identity, target)


def publish(folder: Path, out: Path) -> None:
    """Move the finished staging folder to `out`; an earlier build there is exchanged with it, never mixed."""
    out = out.resolve()
    try:
        if out.exists() and any(out.iterdir()):
            _exchange(folder, out)
        else:
            folder.rename(out)
    except OSError as error:
        raise CompileError(
            f"repository: cannot move the finished build to {out} ({error}): is it a mount point? Name a folder inside"
        ) from error


def _exchange(left: Path, right: Path) -> None:
    """Swap two folders in one step (renameat2 with RENAME_EXCHANGE), or in two where the file system cannot."""
    at_fdcwd, rename_exchange = -100, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        arguments = (at_fdcwd, os.fsencode(left), at_fdcwd, os.fsencode(right), rename_exchange)
        if libc.renameat2(*arguments) == 0:
            return
    aside = left.with_name(f"{left.name}.old")
    right.rename(aside)
    left.rename(right)
    aside.rename(left)
