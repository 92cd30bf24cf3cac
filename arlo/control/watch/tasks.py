"""Applies tasks that `arlo adapt task add` has added to a served pipeline's engines, without a restart.

The new engines have replaced the old files, with the same tasks under the same numbers and further ones. Triton
reloads a served model while the old one keeps answering; only when all workers have the new engines does the gateway
learn of the new tasks. So no row waits, and none reaches an engine that does not know its task.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

from arlo.catalog.flow import Flow
from arlo.catalog.flow_file import load_flow
from arlo.catalog.joined import joined, link
from arlo.catalog.manifest import Manifest
from arlo.clock import monotonic_s
from arlo.config import Config
from arlo.config.flows import PipelineConfig
from arlo.config.stages import flow_of, variant_models
from arlo.control.events import emit
from arlo.control.reconcile.moves import WARMUP_REQUESTS, Probe
from arlo.control.watch.feed import Snapshot
from arlo.errors import ArloError, ConfigError
from arlo.workers.pool import WorkerPool

log = logging.getLogger("arlo.control")

AGAIN_S = 10.0  # after a failure


class TaskWatch:
    """See the module. `served` returns the manifest in use, `change` takes a new one."""

    def __init__(
        self,
        config: Config,
        pipeline: PipelineConfig,
        pool: WorkerPool,
        *,
        served: Callable[[], Manifest],
        change: Callable[[Manifest], None],
        probe: Probe,
    ) -> None:
        self._config, self._pipeline, self._pool = config, pipeline, pool
        self._served, self._change, self._probe = served, change, probe
        self._path = pipeline.flow
        self._mark = file_mark(self._path)
        self._again_s = 0.0  # no retry before this moment

    async def on_stats(self, seen: Snapshot) -> None:
        """Check the flow file."""
        mark = file_mark(self._path)
        if mark is None or mark == self._mark or monotonic_s() < self._again_s:
            return
        try:
            await self._take_up(self._served())
            self._mark = mark
        except ArloError as error:
            self._again_s = monotonic_s() + AGAIN_S
            emit(log, "tasks_failed", level=logging.ERROR, error=str(error), again_in_s=AGAIN_S)

    async def _take_up(self, served: Manifest) -> None:
        before, after = flow_of(self._path), load_flow(self._path)
        manifest, repositories = self._manifest()
        added = _added(served, manifest)
        if not added:
            return
        if _without_accuracy(before) != _without_accuracy(after):
            raise ConfigError(f"{self._path} has changed in more than its tasks: restart `arlo serve`")
        if len(repositories) > 1:
            link(repositories, manifest, self._config.model.repository.parent)
        old = {runtime.name: runtime.files for one in served.models for runtime in one.runtimes}
        for worker in await self._pool.workers():
            for one in manifest.models:
                for runtime in one.runtimes:
                    if runtime.name not in worker.runtimes or runtime.files == old[runtime.name]:
                        continue
                    timeout_s = self._config.workers.load_timeout_s
                    await self._pool.load(worker.id, runtime.name, timeout_s=timeout_s)
                    await self._probe(worker.endpoint, one, runtime, requests=WARMUP_REQUESTS, timeout_s=timeout_s)
        flow_of.cache_clear()
        emit(log, "tasks_added", tasks=added, runtimes=[runtime.name for runtime in manifest.runtimes])
        self._change(manifest)

    def _manifest(self) -> tuple[Manifest, list[Path]]:
        """The repositories' present manifest, and their paths."""
        repositories = [model.repository for model in variant_models(self._pipeline)]
        manifests = [Manifest.load(repository) for repository in repositories]
        if len(manifests) == 1:
            return manifests[0], repositories
        return joined(manifests, [model.name for model in self._config.models]), repositories


def file_mark(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _added(before: Manifest, after: Manifest) -> list[str]:
    """Names of new tasks. ConfigError if anything else has changed that a running gateway cannot apply."""
    added: dict[str, None] = {}
    for old, new in zip(before.models, after.models, strict=True):
        names, more = list(old.tasks), list(new.tasks)
        if more[: len(names)] != names:
            raise ConfigError(
                f"{new.model} has the tasks {', '.join(more)}, and {', '.join(names)} are served: restart"
            )
        same = [runtime.name for runtime in old.runtimes] == [runtime.name for runtime in new.runtimes]
        if not same or old.outputs != new.outputs:
            raise ConfigError(f"{new.model} was built anew with other runtimes or outputs: restart `arlo serve`")
        added |= dict.fromkeys(more[len(names) :])
    counts = {len(each.tasks) for each in after.models}
    if added and len(counts) > 1:
        raise ConfigError("some variants have more tasks than others: wait for `arlo adapt task add`, or run it again")
    return list(added)


def _without_accuracy(flow: Flow) -> Flow:
    stages = tuple(
        dataclasses.replace(
            stage,
            variants=tuple(
                dataclasses.replace(
                    each, accuracy=(0.0,), bins=(), bin_accuracy=(), task_accuracy=(), memory_mb=0, load_ms=0.0
                )
                for each in stage.variants
            ),
        )
        for stage in flow.stages
    )
    return dataclasses.replace(flow, stages=stages)
