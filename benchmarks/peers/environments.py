"""A virtual environment for each rival, under the cache; each records its installed packages."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from arlo.errors import EnvironmentProblem
from arlo.workers.triton.server import user_cache_dir
from benchmarks.harness import ROOT

STAMP = "installed.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Packages at pinned versions. `constrained`: the others as constraints.txt pins them, else as pip chooses."""

    name: str
    packages: tuple[str, ...]
    constrained: bool = True

    @property
    def folder(self) -> Path:
        """The folder of the environment."""
        return cache() / self.name

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        """The environment's site-packages."""
        return self.folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"

    def ready(self) -> bool:
        """Whether these very packages are installed."""
        stamp = self.folder / STAMP
        return self.python.exists() and stamp.is_file() and json.loads(stamp.read_text())["asked"] == [*self.packages]

    def install(self) -> None:
        """Create the environment or update its packages. EnvironmentProblem with the end of pip's output on failure."""
        if not self.python.exists():
            _run([sys.executable, "-m", "venv", str(self.folder)], f"no virtual environment at {self.folder}")
        extra = ["-c", str(ROOT / "constraints.txt")] if self.constrained else []
        pip = [str(self.python), "-m", "pip"]
        _run(
            [*pip, "install", "--quiet", *extra, *self.packages],
            f"{self.name} cannot be installed here; leave it out with --only, or try by hand: "
            f"{self.python} -m pip install {' '.join(self.packages)}",
        )
        frozen = _run([*pip, "freeze"], "pip freeze failed").splitlines()
        (self.folder / STAMP).write_text(json.dumps({"asked": [*self.packages], "installed": frozen}, indent=1))


def cache() -> Path:
    """The cache folder: ~/.cache/arlo/peers, or below $XDG_CACHE_HOME."""
    return user_cache_dir() / "peers"


def _run(command: list[str], wrong: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentProblem(f"{wrong}\n{done.stderr.strip()[-1500:]}")
    return done.stdout
