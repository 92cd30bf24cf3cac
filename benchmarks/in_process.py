"""Triton's own server library in a process of ours, and a load on its models by Triton's C API.

    python -m benchmarks.in_process [--rounds 5]

What the plugin adds there, where neither HTTP nor gRPC hides it: engines that answer at once; the logical model and the
engine itself, in turns; requests of one row of 64 tokens at concurrency 1 and 8, and of four rows at 8. The CPU is that
of the whole process, clients included, for each row.

The library is that of the package nvidia-pytriton, or of the installation that TRITON_SERVER names; the load is
benchmarks/in_process.cc, which `make setup` builds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arlo.catalog.logical import write_logical_model
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.paths import plugin_library, worker_share_dir
from arlo.workers.triton.server import environment, find_triton, prepare_backends
from benchmarks import harness

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of which the median is taken (default: 5)")
    args = parser.parse_args()
    loads = {"1 client": (1, 1, 4000), "8 clients": (8, 1, 20_000), "8 clients, 4 rows": (8, 4, 10_000)}
    phases = [
        Phase(model=model, clients=clients, requests=requests, lengths=[[64] * rows])
        for _ in range(args.rounds)
        for clients, rows, requests in loads.values()
        for model in ("bench", "bench_len64")
    ]
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        manifest = write_emulated_repository(
            repository, model="bench", max_lengths=[64, 128], latency_ms=[0, 0], max_batch=8, pooled_dims=384
        )
        write_logical_model(repository, manifest, library=plugin_library())
        found, _ = run(repository, phases)
    if any(each["wrong"] or each["errors"] for each in found):
        raise SystemExit("some answers were wrong, or errors")
    figures: dict[str, Any] = {}
    for number, (name, (_, rows, _)) in enumerate(loads.items()):
        logical, engine = (found[2 * number + which :: 2 * len(loads)] for which in (0, 1))
        figures[name] = {
            kind: {
                "logical": statistics.median(each[kind] / per for each in logical),
                "engine": statistics.median(each[kind] / per for each in engine),
            }
            for kind, per in (("p50_us", 1), ("cpu_us", rows))
        }
        for kind, pair in figures[name].items():
            pair["added"] = pair["logical"] - pair["engine"]
            print(f"{name:18} {kind}: " + ", ".join(f"{which} {value:.1f}" for which, value in pair.items()))
    print(f"-> {harness.save('in_process', f'python -m benchmarks.in_process --rounds {args.rounds}', figures)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
