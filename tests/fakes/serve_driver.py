"""`arlo serve` for a test to kill: `python -m tests.fakes.serve_driver CONFIG`.

SIGUSR1 makes it want the other of the two allocations in flips.json beside the configuration. While kill_at beside the
configuration names a step of a move, the process kills itself with SIGKILL when a worker gets there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from arlo import config as configuration
from arlo.cli import serve as command
from arlo.control import events
from arlo.control.http.status import WorkerStep
from arlo.control.plane import Cluster
from arlo.control.reconcile import jobs
from arlo.control.serve import serve
from arlo.planning.placement.assignment import assign


def main(path: Path) -> int:
    configured = configuration.load(path)
    events.configure(as_json=True)
    kill_at = path.with_name("kill_at")
    set_step = jobs.Jobs.set_step

    def watched(self: jobs.Jobs, worker: str, step: WorkerStep) -> None:
        set_step(self, worker, step)
        if kill_at.exists() and kill_at.read_text() == step:
            kill_at.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    jobs.Jobs.set_step = watched  # type: ignore[method-assign]

    def ready(cluster: Cluster) -> None:
        def flip() -> None:
            now = Counter(cluster.reconciler.desired.values())
            flips = [Counter(each) for each in json.loads(path.with_name("flips.json").read_text())]
            wanted = flips[1] if now == flips[0] else flips[0]
            placement = assign(dict(sorted(wanted.items())), cluster.reconciler.views())
            cluster.reconciler.want(placement)
            cluster.scheduler._orders._save(placement, "period")

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, flip)
        sys.stdout.write(json.dumps(command.as_dict(cluster, configured)) + "\n")
        sys.stdout.flush()

    return asyncio.run(serve(configured, ready=ready))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
