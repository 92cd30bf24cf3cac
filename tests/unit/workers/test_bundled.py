"""A bundle is loaded when all its parts are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from arlo.catalog.bundle import bundle_of
from arlo.workers.bundled import BundledPool
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.pool import WorkerInfo


class OneWorker:
    """A pool of one worker that notes what it is told."""

    resizable = False
    restartable = True

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.calls: list[str] = []

    async def workers(self) -> list[WorkerInfo]:
        return [
            WorkerInfo(
                id="w0",
                endpoint="here:1",
                metrics_url=None,
                state="ready",
                pid=1,
                restarts=0,
                runtimes=tuple(self.loaded),
                log=None,
            )
        ]

    async def load(self, worker: str, runtime: str, **_: Any) -> None:
        self.calls.append(f"load {runtime}")
        self.loaded.append(runtime)

    async def unload(self, worker: str, runtime: str, **_: Any) -> None:
        self.calls.append(f"unload {runtime}")
        self.loaded.remove(runtime)


async def test_its_parts_are_loaded_and_unloaded_in_turn(tmp_path: Path) -> None:
    manifest = write_emulated_repository(tmp_path, model="m", max_lengths=(16, 64), latency_ms=(1, 4))
    bundle = bundle_of("m_bundle", manifest.runtimes)
    one = OneWorker()
    pool = BundledPool(one, dataclasses.replace(manifest, runtimes=(bundle,)))  # type: ignore[arg-type]

    async def seen() -> tuple[str, ...]:
        return (await pool.workers())[0].runtimes

    assert await seen() == ()
    await one.load("w0", "m_len16")  # what an earlier control plane left
    assert await seen() == ("m_len16",)
    await pool.load("w0", "m_bundle")
    assert one.calls == ["load m_len16", "load m_len64"]
    assert "m_bundle" in await seen()
    await pool.unload("w0", "m_bundle")
    assert one.calls[2:] == ["unload m_len16", "unload m_len64"]
    assert await seen() == ()


async def test_what_is_not_ours_stays_where_no_process_is_restarted(tmp_path: Path) -> None:
    manifest = write_emulated_repository(tmp_path, model="m", max_lengths=(16, 64), latency_ms=(1, 4))
    bundle = bundle_of("m_bundle", manifest.runtimes)
    one = OneWorker()
    one.restartable = False
    one.loaded = ["m", "m_len16", "m_len64"]
    pool = BundledPool(one, dataclasses.replace(manifest, runtimes=(bundle,)))  # type: ignore[arg-type]
    await pool.restart("w0")
    assert one.loaded == ["m"]
