"""Files of a Debian package, without root and without installing it: `apt-get download`, sha256, `dpkg-deb`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from arlo.errors import EnvironmentProblem


@contextmanager
def unpacked(package: str, version: str, sha256: str, *, archives: Path) -> Iterator[Path]:
    """A passing folder with the files of one version of a package, which is kept in `archives`.

    EnvironmentProblem when apt is missing or has not the package, or when the file is another than `sha256` says.
    """
    with TemporaryDirectory() as folder:
        run(
            ["dpkg-deb", "-x", str(_fetch(package, version, sha256, archives)), folder], f"{package} cannot be unpacked"
        )
        yield Path(folder)


def _fetch(package: str, version: str, sha256: str, archives: Path) -> Path:
    kept = archives / f"{package}.deb"
    if kept.is_file() and _digest(kept) == sha256:
        return kept
    with TemporaryDirectory() as folder:
        # apt drops its rights where it is root, and must be able to write here then.
        Path(folder).chmod(0o777)
        wanted = f"{package}={version}"
        run(["apt-get", "download", wanted], f"{wanted} cannot be fetched; `apt-get update` may help", cwd=Path(folder))
        fetched = next(Path(folder).glob("*.deb"))
        if _digest(fetched) != sha256:
            raise EnvironmentProblem(f"{wanted} is not the file that was expected: its sha256 is {_digest(fetched)}")
        archives.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".part")
        shutil.copyfile(fetched, partial)
        partial.rename(kept)
    return kept


def run(command: list[str], problem: str, *, cwd: Path | None = None) -> str:
    """What a command prints. EnvironmentProblem with its last line when it is missing or fails."""
    try:
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, errors="replace").stdout
    except FileNotFoundError:
        raise EnvironmentProblem(f"{problem}: {command[0]} is not here, which Debian and its like have") from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or "nothing said").splitlines()[-1]
        raise EnvironmentProblem(f"{problem} ({command[0]}: {said})") from None


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
