"""Triton's own server library in a process of its own, and a load on its models by Triton's C API.

The library is that of the package nvidia-pytriton, or of the installation that TRITON_SERVER names; the load is
in_process.cc, which `make setup` builds.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.workers.paths import worker_share_dir
from arlo.workers.triton.server import environment, find_triton, prepare_backends

# In a Python of its own: the server's libraries are found by LD_LIBRARY_PATH, which a process reads when it starts.
LOADER = """
import ctypes, sys
server, load, *words = sys.argv[1:]
ctypes.CDLL(server, mode=ctypes.RTLD_GLOBAL)
words = [word.encode() for word in words]
sys.exit(ctypes.CDLL(load).arlo_in_process(len(words), (ctypes.c_char_p * len(words))(*words)))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Phase:
    """So many requests to a model by clients that each wait for the answer."""

    model: str
    requests: int
    lengths: Sequence[Sequence[int]]  # of the rows of each request; in turn
    clients: int = 1
    width: int = 0  # of the tensors; 0: that of the request's longest row

    def __str__(self) -> str:
        lengths = ",".join("+".join(map(str, rows)) for rows in self.lengths)
        return f"{self.model}:{self.clients}:{self.requests}:{self.width}:{lengths}"


def server_library() -> Path:
    """libtritonserver.so; SystemExit where the installation has none."""
    for folder in find_triton().library_dirs:
        for path in sorted(folder.glob("libtritonserver*.so")):
            return path
    raise SystemExit("this Triton has no libtritonserver.so beside it")


def load_module() -> Path:
    """The load. SystemExit where it is not built."""
    path = worker_share_dir() / "lib" / "libarlo_in_process.so"
    if not path.is_file():
        raise SystemExit(f"{path} is missing: run `make setup`")
    return path


def run(repository: Path, phases: Sequence[Phase]) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Load every model of the repository in a process, run the phases, stop the server.

    What each phase found (see in_process.cc), and the plugin's metrics at the end. RuntimeError when
    the process fails, with what it says.
    """
    server = find_triton()
    env = environment(server, threads=1, base={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    env.pop("LD_PRELOAD", None)  # what is preloaded is for the program `tritonserver`
    words = [server_library(), load_module(), repository.absolute(), prepare_backends(server), *phases]
    command = [sys.executable, "-c", LOADER, *map(str, words)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(
            f"Triton in a process ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return lines[:-1], lines[-1]["metrics"]
