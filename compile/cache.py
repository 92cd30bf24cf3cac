"""The cache of finished steps: a folder per step and key, whole or absent.

    <root>/compile/<step>/<key>/entry.json    the step's meta data and seconds; its files' sha256, size and mtime
    <root>/compile/<step>/<key>/...           the files

An entry is written to a temporary sibling and renamed, so a killed step leaves nothing that can be taken for whole;
such leftovers of dead processes are removed on the next run. A file whose size or modification time has changed since
it was written is hashed again before the entry is used: it may be hard-linked into repositories and modified there.
(Hashing all of them took longer than the rest of a fully cached build.)
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from arlo.clock import monotonic_s
from arlo.errors import CompileError, EnvironmentProblem, how_to_install

_ENTRY = "entry.json"
_TEMPORARY = ".tmp-"


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A finished step."""

    key: str
    folder: Path
    meta: dict[str, Any]
    files: dict[str, str]  # name -> sha256
    cached: bool
    seconds: float = 0.0  # that it took; 0: not known, from before it was noted


class NotCached(Exception):  # noqa: N818  # no error: an answer
    """A step of a read-only cache has no entry."""


class Hasher:
    """sha256 of files; a file that is hard-linked many times is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], str] = {}

    def known(self, path: Path, digest: str) -> None:
        """Note the content of a file that did not change since it was hashed."""
        stat = path.stat()
        self._known[stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns] = digest

    def file(self, path: Path) -> str:
        """sha256 of the content, in hexadecimal."""
        stat = path.stat()
        identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if identity not in self._known:
            with path.open("rb") as stream:
                self._known[identity] = hashlib.file_digest(stream, "sha256").hexdigest()
        return self._known[identity]


def key_of(parts: Mapping[str, Any]) -> str:
    """A short hash of all inputs of a step's result."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def code_version(*modules: str) -> str:
    """Hash of the source of modules, named by their path in this package, so that changed code never reuses results of
    older code."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update((Path(__file__).parent / f"{module}.py").read_bytes())
    return digest.hexdigest()[:16]


def tool_versions(*packages: str) -> dict[str, str]:
    """Versions of installed packages, without importing them. EnvironmentProblem when one is missing."""
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise EnvironmentProblem(f"the package {package} is needed to compile: {how_to_install(package)}") from None
    return versions


class Cache:
    """Entries below one folder. Safe for several processes at once: the first to finish an entry wins."""

    def __init__(self, root: Path, hasher: Hasher) -> None:
        self._root = root / "compile"
        self._hasher = hasher
        self._read_only = False
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CompileError(
                f"cache: cannot write {self._root} ({error}): set ARLO_CACHE to another folder"
            ) from None
        for folder in self._root.glob(f"*/*{_TEMPORARY}*"):
            remove_if_orphaned(folder)

    @property
    def folder(self) -> Path:
        """The folder that holds the entries."""
        return self._root

    def hash(self, path: Path) -> str:
        """sha256 of a file that a step depends on."""
        return self._hasher.file(path)

    def read_only(self) -> Cache:
        """The same cache, whose steps raise NotCached instead of making a missing entry."""
        other = copy.copy(self)
        other._read_only = True
        return other

    def step(
        self, step: str, parts: Mapping[str, Any], make: Callable[[Path], dict[str, Any]], *, fresh: bool = False
    ) -> Entry:
        """The entry for (step, parts); `make(folder)` writes its files and returns its meta data when there is none.

        fresh: drop the entry that is there, if any.
        """
        key = key_of(parts)
        folder = self._root / step / key
        if fresh and not self._read_only:
            shutil.rmtree(folder, ignore_errors=True)
        found = self._read(folder, key)
        if found is not None:
            return found
        if self._read_only:
            raise NotCached
        try:
            folder.parent.mkdir(exist_ok=True)
            with temporary_folder(folder.parent, f"{key}{_TEMPORARY}") as temporary:
                begun = monotonic_s()
                meta = make(temporary)
                seconds = monotonic_s() - begun
                files = {path.name: self._described(path) for path in sorted(temporary.iterdir())}
                told = {"meta": meta, "seconds": seconds, "files": files, "made_from": parts}
                (temporary / _ENTRY).write_text(json.dumps(told, indent=1, default=str) + "\n")
                try:
                    temporary.rename(folder)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
        except OSError as error:
            raise _disk_error(step, error) from error
        written = self._read(folder, key)
        if written is None:
            raise CompileError(f"{step}: {folder} changed while it was written: is another tool cleaning the cache?")
        return dataclasses.replace(written, cached=False)

    def _read(self, folder: Path, key: str) -> Entry | None:
        try:
            raw = json.loads((folder / _ENTRY).read_text())
            meta, seconds = raw["meta"], float(raw.get("seconds", 0.0))
            files: dict[str, Any] | None = {
                name: self._content(folder / name, described) for name, described in raw["files"].items()
            }
        except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError):
            files = None
        if files is None or None in files.values():
            shutil.rmtree(folder, ignore_errors=True)
            return None
        return Entry(key=key, folder=folder, meta=meta, files=files, cached=True, seconds=seconds)

    def _described(self, path: Path) -> dict[str, Any]:
        digest, stat = self._hasher.file(path), path.stat()
        return {"sha256": digest, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}

    def _content(self, path: Path, described: Mapping[str, Any]) -> str | None:
        """The file's sha256; None when the file differs from the one written."""
        digest, stat = str(described["sha256"]), path.stat()
        if (stat.st_size, stat.st_mtime_ns) == (described["bytes"], described["mtime_ns"]):
            self._hasher.known(path, digest)
            return digest
        return digest if self._hasher.file(path) == digest else None


def _disk_error(step: str, error: OSError) -> CompileError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CompileError(f"{step}: the disk is full ({error}): free some space, or set ARLO_CACHE to another disk")
    return CompileError(f"{step}: cannot write a file ({error})")


@contextlib.contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder that is removed afterwards, unless it was moved. A lock shows others that its owner lives."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        folder.chmod(0o755)
        yield folder
    finally:
        os.close(handle)
        shutil.rmtree(folder, ignore_errors=True)


def remove_if_orphaned(folder: Path) -> None:
    """Remove a `temporary_folder` left behind by a killed process, whose lock ended with it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)


def link_out(entry: Entry, folder: Path) -> Path:
    """Put the files of an entry into `folder`, replacing its previous content; returns `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder.parent, f".{folder.name}.") as fresh:
        for name in entry.files:
            link_or_copy(entry.folder / name, fresh / name)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return folder


def link_or_copy(source: str | Path, target: str | Path) -> bool:
    """Hard-link `target` to `source`, or copy where links do not work. True when linked."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        return False
    return True
