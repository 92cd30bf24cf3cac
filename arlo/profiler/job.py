"""The job of `arlo compile profile`: one runtime at a time on one worker; each point is saved once measured."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import statistics
import threading
from collections.abc import AsyncIterator, Callable, Sequence

from arlo import __version__
from arlo.catalog.manifest import Manifest, Runtime
from arlo.clock import monotonic_s, unix_s
from arlo.errors import ConfigError, WorkerError
from arlo.profiler.format import How, LatencyProfile, Point, RuntimeProfile, runtime_hash
from arlo.profiler.interval import half_width, percentile
from arlo.profiler.machine import CpuTimes, engine_versions
from arlo.profiler.measure import Until, repeat, warm_up
from arlo.profiler.points import choose_points
from arlo.profiler.wire import WorkerClient, counted, infer_request, mean_between
from arlo.profiler.worker import in_thread
from arlo.workers import WorkerInfo, WorkerPool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """The options of a profiling job. Constructing it checks every field; ConfigError says what to change."""

    runtimes: tuple[str, ...] = ()  # names; none: all of them
    lengths: tuple[int, ...] = ()  # of dynamic runtimes, tokens; none: see choose_points()
    batches: tuple[int, ...] = ()  # rows; none: 1, 2, 4, ... and max_batch
    confidence: float = 0.95
    precision: float = 0.02  # half width of the interval over the mean
    max_seconds: float = 10.0  # longest time for one point, warm-up not counted
    outputs: tuple[str, ...] = ()  # asked for in each request; none: the manifest's first
    request_timeout_s: float = 120.0
    load_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence <= 0.9999:
            raise ConfigError(f"--confidence must be from 0.5 to 0.9999, not {self.confidence:g}")
        if not 0 < self.precision < 1:
            raise ConfigError(f"--precision must be above 0 and below 1, not {self.precision:g}")
        if not 0 < self.max_seconds <= 3600:
            raise ConfigError(f"--max-seconds must be above 0 and at most 3600, not {self.max_seconds:g}")
        for name, values in (("--lengths", self.lengths), ("--batches", self.batches)):
            if any(value < 1 for value in values):
                raise ConfigError(f"{name} must be at least 1: {', '.join(map(str, values))}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is. `point` is the one just measured, None while `runtime` is being loaded."""

    done: int  # points, those kept from before included
    total: int
    runtime: str
    point: Point | None = None


async def profile_runtimes(
    pool: WorkerPool,
    manifest: Manifest,
    *,
    device: str,
    threads: int | None,
    options: ProfileOptions,
    before: LatencyProfile | None = None,
    save: Callable[[LatencyProfile], None] = lambda _: None,
    report: Callable[[Progress], None] = lambda _: None,
) -> LatencyProfile:
    """Measure on the first worker of a started pool and return the profile; `save` gets it after every point.

    Points of `before` that were measured the same way are kept; ConfigError when `before` does not match. Runtimes
    that were loaded before stay loaded. WorkerError names the runtime that does not load or answer. Cancelling
    abandons the request under way and unloads the runtime.
    """
    chosen = choose_runtimes(manifest, options.runtimes)
    wanted = {
        runtime.name: choose_points(runtime, lengths=options.lengths, batches=options.batches) for runtime in chosen
    }
    worker = (await pool.workers())[0]
    client = WorkerClient(worker.endpoint, timeout_s=options.request_timeout_s)
    stop = threading.Event()

    def abandon() -> None:
        stop.set()
        client.close()

    try:
        profile = _empty(manifest, device, threads, options, await asyncio.to_thread(client.server_version))
        if before is not None:
            profile = keep_points(profile, before)
        left = {name: [at for at in points if _lacks(profile, name, *at)] for name, points in wanted.items()}
        total = sum(map(len, wanted.values()))
        done = total - sum(map(len, left.values()))
        for runtime in chosen:
            if not left[runtime.name]:
                continue
            report(Progress(done=done, total=total, runtime=runtime.name))
            async with _loaded(pool, worker, runtime.name, options.load_timeout_s) as load_ms:
                if load_ms is not None and (entry := profile.runtime(runtime.name)) is not None:
                    profile = profile.with_runtime(dataclasses.replace(entry, load_ms=load_ms))
                session = _Session(manifest, runtime, client, worker.pid, profile.how)
                for length, batch in left[runtime.name]:
                    entry = profile.runtime(runtime.name)
                    assert entry is not None
                    point, shorter = await in_thread(
                        functools.partial(session.measure, length, batch, stop.is_set), abandon
                    )
                    entry = entry.with_point(point)
                    if shorter is not None:
                        entry = dataclasses.replace(entry, shorter=shorter)
                    profile = dataclasses.replace(profile.with_runtime(entry), date=_now())
                    save(profile)
                    done += 1
                    report(Progress(done=done, total=total, runtime=runtime.name, point=point))
        return profile
    finally:
        client.close()


def choose_runtimes(manifest: Manifest, names: Sequence[str]) -> list[Runtime]:
    """The runtimes of these names, all of them without names; ConfigError for one that the manifest lacks."""
    known = {runtime.name: runtime for runtime in manifest.runtimes}
    for name in names:
        if name not in known:
            raise ConfigError(f"the repository has no runtime {name!r}; it has: {', '.join(known)}")
    return [runtime for runtime in manifest.runtimes if not names or runtime.name in names]


def keep_points(new: LatencyProfile, before: LatencyProfile) -> LatencyProfile:
    """`new` (without points) with the points of `before` that still count for it.

    Points of a rebuilt runtime do not count, nor those that missed the precision with less time allowed.
    ConfigError when model, device, versions or options differ: the points would not be comparable.
    """
    differences = [
        f"{name} ({there!r}, now {here!r})"
        for name, there, here in (
            ("model", before.model, new.model),
            ("device", before.device, new.device),
            ("versions", before.versions, new.versions),
            ("confidence", before.how.confidence, new.how.confidence),
            ("precision", before.how.precision, new.how.precision),
            ("threads", before.how.threads, new.how.threads),
            ("outputs", before.how.outputs, new.how.outputs),
            ("method", before.how.method, new.how.method),
            ("provenance", before.provenance, new.provenance),
        )
        if there != here
    ]
    if differences:
        raise ConfigError(
            f"the points that are there were measured with another {'; another '.join(differences)}: measure all "
            "again with --fresh, or write to another --out"
        )
    longer = new.how.max_seconds > before.how.max_seconds
    runtimes = []
    for runtime in new.runtimes:
        old = before.runtime(runtime.name)
        if old is not None and old.hash == runtime.hash:
            points = tuple(p for p in old.points if not longer or p.within(new.how.precision))
            runtime = dataclasses.replace(  # noqa: PLW2901
                runtime, points=points, shorter=old.shorter, load_ms=old.load_ms
            )
        runtimes.append(runtime)
    return dataclasses.replace(new, runtimes=tuple(runtimes), date=before.date)


def _empty(
    manifest: Manifest, device: str, threads: int | None, options: ProfileOptions, triton: str
) -> LatencyProfile:
    known = [output.name for output in manifest.outputs]
    for name in options.outputs:
        if name not in known:
            raise ConfigError(f"the model has no output {name!r}; it has: {', '.join(known)}")
    return LatencyProfile(
        model=manifest.model,
        device=device,
        versions={"arlo": __version__, "triton": triton, **engine_versions(manifest)},
        date=_now(),
        provenance=f"measured through Triton {triton}",
        how=How(
            confidence=options.confidence,
            precision=options.precision,
            max_seconds=options.max_seconds,
            threads=threads,
            outputs=options.outputs or (known[0],),
        ),
        runtimes=tuple(
            RuntimeProfile(
                name=runtime.name,
                hash=runtime_hash(runtime),
                max_length=runtime.max_length,
                max_batch=runtime.max_batch,
                dynamic=runtime.dynamic,
            )
            for runtime in manifest.runtimes
        ),
    )


def _lacks(profile: LatencyProfile, runtime: str, length: int, batch: int) -> bool:
    entry = profile.runtime(runtime)
    return entry is None or entry.point(length, batch) is None


def _now() -> str:
    return datetime.datetime.fromtimestamp(unix_s(), tz=datetime.UTC).isoformat(timespec="seconds")


@contextlib.asynccontextmanager
async def _loaded(pool: WorkerPool, worker: WorkerInfo, runtime: str, timeout_s: float) -> AsyncIterator[int | None]:
    """Keep the runtime loaded inside the block; yields the load time in ms. A runtime loaded before stays loaded and is
    not reloaded under its users: None."""
    if runtime in worker.runtimes:
        yield None
        return
    began_s = monotonic_s()
    await pool.load(worker.id, runtime, timeout_s=timeout_s)
    load_ms = round(1000 * (monotonic_s() - began_s))
    try:
        yield load_ms
    except BaseException:
        # Triton unloads once the abandoned request has ended; we do not wait for that.
        with contextlib.suppress(WorkerError):
            await pool.unload(worker.id, runtime, timeout_s=1.0)
        raise
    await pool.unload(worker.id, runtime)


class _Session:
    """One runtime, loaded."""

    def __init__(self, manifest: Manifest, runtime: Runtime, client: WorkerClient, pid: int | None, how: How) -> None:
        self._manifest, self._runtime, self._client, self._pid, self._how = manifest, runtime, client, pid, how

    def measure(self, length: int, batch: int, stopped: Callable[[], bool]) -> tuple[Point, Point | None]:
        """The point; for a static runtime at batch 1 also that of a row half as long, padded."""
        point = self._point(length, batch, length, stopped)
        if self._runtime.dynamic or batch > 1 or length < 2:
            return point, None
        return point, self._point(length, batch, length // 2, stopped)

    def _point(self, length: int, batch: int, real: int, stopped: Callable[[], bool]) -> Point:
        how, name = self._how, self._runtime.name
        request = infer_request(
            self._manifest, self._runtime, length=length, batch=batch, outputs=how.outputs, real=real
        )
        call = self._client.caller(name, request)
        until = Until(confidence=how.confidence, precision=how.precision, max_seconds=how.max_seconds)
        start = self._client.compute_times(name)
        self._client.check(name, request, batch=batch, outputs=how.outputs)
        warm = 1 + warm_up(call, until, now=monotonic_s, stopped=stopped)
        before = counted(self._client, name, start.count + warm) if start is not None else None
        cpu = CpuTimes.read(self._pid)
        times_us = [1e6 * seconds for seconds in repeat(call, until, now=monotonic_s, stopped=stopped)]
        # For a remote worker only our own CPU would be seen, and the worker itself might count as the "other" load.
        load = cpu.other_load(CpuTimes.read(self._pid)) if self._pid is not None else None
        after = counted(self._client, name, before.count + len(times_us)) if before is not None else None
        compute_us, queue_us = mean_between(before, after)
        return Point(
            length=real,
            batch=batch,
            mean_us=round(statistics.fmean(times_us), 1),
            p50_us=round(percentile(times_us, 0.50), 1),
            p98_us=round(percentile(times_us, 0.98), 1),
            samples=len(times_us),
            half_width_us=round(half_width(times_us, how.confidence), 1),
            compute_us=None if compute_us is None else round(compute_us, 1),
            queue_us=None if queue_us is None else round(queue_us, 1),
            other_load=None if load is None else round(load, 3),
        )
