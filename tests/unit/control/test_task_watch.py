"""Tasks that were added to engines that are served: loaded on every worker, then told; else all stays as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arlo.catalog.joined import joined, link
from arlo.catalog.manifest import Manifest
from arlo.catalog.tasks import task_input
from arlo.config import Config, load
from arlo.config.stages import flow_of
from arlo.control.watch import tasks as watching
from arlo.control.watch.feed import Snapshot
from arlo.control.watch.tasks import TaskWatch
from arlo.errors import WorkerError
from arlo.workers.emulated.repository import write_emulated_repository
from arlo.workers.pool import WorkerInfo

COUNTS = (0, -4)
BEFORE = {"topic": ("a", "b")}
AFTER = BEFORE | {"tone": ("x", "y", "z")}


def write_variant(root: Path, tokens: int, tasks: dict[str, tuple[str, ...]], **fields: Any) -> None:
    """A repository as `arlo adapt` builds it: its files differ with its tasks."""
    path = root / f"m{-tokens}"
    manifest = write_emulated_repository(path, model=f"body-m{-tokens}", max_lengths=[16], latency_ms=[2])
    (runtime,) = manifest.runtimes
    runtime = dataclasses.replace(runtime, files={name: str(len(tasks)) for name in runtime.files})
    inputs = (*manifest.inputs, task_input(len(tasks)))
    dataclasses.replace(manifest, inputs=inputs, tasks=tasks, runtimes=(runtime,), **fields).save(path)


def write_flow(root: Path, accuracy: float, latency: int = 2) -> None:
    variants = "".join(
        f'[[flow.stage.variant]]\nrepository = "m{-tokens}"\ntokens = {tokens}\naccuracy = {accuracy}\n'
        f"max_lengths = [16]\nlatency = [[1, {latency - tokens / 8}]]\n"
        for tokens in COUNTS
    )
    temporary = root / "flow.new"
    temporary.write_text(f'[flow]\nname = "body"\nslo_ms = 100\n[[flow.stage]]\nname = "tokens"\n{variants}')
    temporary.replace(root / "flow.toml")


def manifest_of(root: Path, config: Config) -> Manifest:
    manifests = [Manifest.load(root / f"m{-tokens}") for tokens in COUNTS]
    return joined(manifests, [model.name for model in config.models])


class Pool:
    """Two workers that have both runtimes."""

    def __init__(self, runtimes: list[str]) -> None:
        self.done: list[str] = []
        self.broken = False
        self._runtimes = tuple(runtimes)

    async def workers(self) -> list[WorkerInfo]:
        known = {"metrics_url": None, "state": "ready", "pid": 1, "restarts": 0, "log": None}
        return [WorkerInfo(id=name, endpoint=name, runtimes=self._runtimes, **known) for name in ("w0", "w1")]  # type: ignore[arg-type]

    async def load(self, worker: str, runtime: str, *, timeout_s: float = 0) -> None:
        if self.broken:
            raise WorkerError("no room")
        self.done.append(f"load {worker} {runtime}")

    async def probe(self, endpoint: str, manifest: Manifest, runtime: Any, **_: Any) -> None:
        self.done.append(f"probe {endpoint} {runtime.name} of {len(manifest.tasks)}")


@dataclasses.dataclass
class Watched:
    root: Path
    pool: Pool
    changes: list[Manifest]
    watch: TaskWatch = dataclasses.field(init=False)

    async def look(self) -> str:
        """What was done last, or said by an event."""
        await self.watch.on_stats(Snapshot(()))
        return self.pool.done[-1] if self.pool.done else ""


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(watching, "AGAIN_S", 0.0)
    for tokens in COUNTS:
        write_variant(tmp_path, tokens, BEFORE)
    write_flow(tmp_path, 0.8)
    (tmp_path / "serve.toml").write_text('[pipeline]\nflow = "flow.toml"\n[workers]\ncount = 2\nrun_dir = "run"\n')
    config = load(tmp_path / "serve.toml")
    served = manifest_of(tmp_path, config)
    (tmp_path / "run").mkdir()
    folder = link([model.repository for model in config.models], served, tmp_path / "run")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, repository=folder))
    pool = Pool([runtime.name for runtime in served.runtimes])
    found = Watched(tmp_path, pool, [])

    def change(manifest: Manifest) -> None:
        found.changes.append(manifest)
        pool.done.append("changed")

    monkeypatch.setattr(watching, "emit", lambda _log, event, **_fields: pool.done.append(event))
    assert config.pipeline is not None
    found.watch = TaskWatch(
        config,
        config.pipeline,
        pool,
        served=lambda: served,
        change=change,
        probe=pool.probe,  # type: ignore[arg-type]
    )
    yield found
    flow_of.cache_clear()


async def test_every_worker_first(watched: Watched) -> None:
    for tokens in COUNTS:
        write_variant(watched.root, tokens, AFTER)
    write_flow(watched.root, 0.7)
    assert await watched.look() == "changed"
    done = watched.pool.done
    assert done[-2:] == ["tasks_added", "changed"]
    assert len(done) == 2 * 2 * len(COUNTS) + 2
    assert all(done[i].startswith("load") and done[i + 1].startswith("probe") for i in range(0, 8, 2))
    assert all(each.endswith("of 2") for each in done if each.startswith("probe"))
    (manifest,) = watched.changes
    assert [dict(each.tasks) for each in manifest.models] == [AFTER, AFTER]
    assert flow_of(watched.root / "flow.toml").stages[0].variants[0].accuracy == (0.7,)


async def test_a_load_that_fails_is_tried_again(watched: Watched) -> None:
    watched.pool.broken = True
    for tokens in COUNTS:
        write_variant(watched.root, tokens, AFTER)
    write_flow(watched.root, 0.7)
    assert await watched.look() == "tasks_failed"
    assert not watched.changes
    watched.pool.broken = False
    assert await watched.look() == "changed"


@pytest.mark.parametrize("what", ["some", "order", "outputs", "flow"])
async def test_what_cannot_be_taken_up(watched: Watched, what: str) -> None:
    """Other tasks in old places, engines of another form, half of the work: all stays as it is, and it is said."""
    other: dict[str, Any] = {"labels": ("x",)}
    if what == "outputs":
        other = {"outputs": Manifest.load(watched.root / "m0").outputs[:1]}
    tasks = {"tone": ("x",), **BEFORE} if what == "order" else AFTER
    for tokens in COUNTS[: 1 if what == "some" else 2]:
        write_variant(watched.root, tokens, tasks, **other)
    write_flow(watched.root, 0.7, latency=9 if what == "flow" else 2)
    assert await watched.look() == "tasks_failed"
    assert not watched.changes
    assert not [each for each in watched.pool.done if each.startswith("load")]
    assert flow_of(watched.root / "flow.toml").stages[0].variants[0].accuracy == (0.8,)


async def test_a_flow_file_that_is_only_touched(watched: Watched) -> None:
    """No task is new: what is served does not change under our feet."""
    write_flow(watched.root, 0.5)
    await watched.look()
    assert watched.pool.done == []
