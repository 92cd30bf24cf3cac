"""A control plane of its own for a test to kill: a Ray pool that loads a runtime and then only waits.

`python ray_driver.py JSON`, with RayPool's arguments and `load`, a runtime; prints the workers as JSON once loaded.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from pathlib import Path

from arlo.workers.ray.pool import RayPool


async def main(options: dict[str, object]) -> None:
    runtime = str(options.pop("load"))
    repository, run_dir = Path(str(options.pop("repository"))), Path(str(options.pop("run_dir")))
    pool = RayPool(repository, run_dir=run_dir, **options)  # type: ignore[arg-type]
    await pool.start()
    for worker in await pool.workers():
        await pool.load(worker.id, runtime)
    print(json.dumps([dataclasses.asdict(worker) for worker in await pool.workers()]), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
