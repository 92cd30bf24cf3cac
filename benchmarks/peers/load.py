"""Open-loop load over HTTP: requests leave when they are due, regardless of earlier ones."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import numpy as np
import psutil
from numpy.typing import NDArray

from arlo.errors import WorkerError
from arlo.traces.generate import arrivals
from benchmarks.peers.search import SHARE, Run, judge

LATE_FACTOR, LEAST_TIMEOUT_S = 10, 5.0  # a client waits this many SLOs, and no less than that
REST_S, IDLE = 0.5, 0.1  # a server that takes less than this share of a core for so long is idle
SETTLE_S = 30.0  # for a server to answer as usual again after too much load


class Server:
    """A server that answers texts: its address, its API and its processes. `post` is for one client session."""

    def __init__(
        self,
        name: str,
        url: str,
        body: Callable[[str], dict[str, Any]],
        vector: Callable[[Any], list[float]],
        pids: Sequence[int],
    ) -> None:
        self.name, self.url, self._body, self._vector, self._pids = name, url, body, vector, tuple(pids)

    def encode(self, text: str) -> bytes:
        """The body that asks for one text's vector."""
        return json.dumps(self._body(text)).encode()

    async def post(self, session: aiohttp.ClientSession, body: bytes) -> bytes | None:
        """The answer's bytes; None: it was refused or broken."""
        try:
            async with session.post(self.url, data=body, headers={"Content-Type": "application/json"}) as answer:
                content = await answer.read()
                return content if answer.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def vector(self, session: aiohttp.ClientSession, text: str) -> NDArray[np.float64] | None:
        """The text's vector, float64[dims]; None: there was no answer."""
        content = await self.post(session, self.encode(text))
        return None if content is None else np.array(self._vector(json.loads(content)), np.float64)

    def ended(self) -> bool:
        """Whether one of its first processes is gone."""
        return not all(psutil.pid_exists(pid) for pid in self._pids)

    def usage(self) -> tuple[float, float]:
        """CPU seconds so far (user + system), resident MB: of the process tree; shared pages count in each process."""
        cpu_s = rss = 0.0
        for pid in self._pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = psutil.Process(pid)
                for process in [parent, *parent.children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        times = process.cpu_times()
                        cpu_s += times.user + times.system
                        rss += process.memory_info().rss
        return cpu_s, rss / 2**20


def client(slo_s: float) -> aiohttp.ClientSession:
    """A client with as many connections as it needs, kept open."""
    timeout = aiohttp.ClientTimeout(total=max(LATE_FACTOR * slo_s, LEAST_TIMEOUT_S))
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


async def run(
    server: Server, texts: Sequence[str], *, rate: float, duration_s: float, slo_s: float, seed: int, stop_early: bool
) -> Run:
    """Poisson arrivals at `rate` for `duration_s`, one text each; the same texts and arrivals for every server.

    With `stop_early` it ends once more requests are late than allowed.
    """
    due_s = arrivals(rate, duration_s, seed)
    bodies = [server.encode(text) for text in texts]
    latencies_s: list[float | None] = []
    late = 0
    allowed = (1 - SHARE) * len(due_s)

    async with client(slo_s) as session, asyncio.TaskGroup() as group:
        cpu_before, _ = server.usage()
        start_s = time.monotonic()

        async def one(due: float, body: bytes) -> None:
            nonlocal late
            answer = await server.post(session, body)
            took = time.monotonic() - start_s - due
            latencies_s.append(None if answer is None else took)
            late += answer is None or took > slo_s

        tasks = []
        cut = False
        for number, due in enumerate(due_s):
            if (wait := start_s + float(due) - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            if cut := stop_early and late > allowed:
                break
            tasks.append(group.create_task(one(float(due), bodies[number % len(bodies)])))
        while not cut and any(not task.done() for task in tasks):
            await asyncio.wait([task for task in tasks if not task.done()], timeout=0.05)
            cut = stop_early and late > allowed
        if cut:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        cpu_after, rss_mb = server.usage()
    found = judge(rate, latencies_s, slo_s=slo_s, duration_s=duration_s, planned=len(due_s), cut_short=cut)
    answered = found.sent - found.failed
    cpu_ms = (cpu_after - cpu_before) * 1e3 / answered if answered and not cut else None
    return dataclasses.replace(found, cpu_ms=cpu_ms, rss_mb=rss_mb)


async def settle(server: Server, text: str, slo_s: float) -> None:
    """Wait until three answers in a row are on time again, so that a run's backlog does not burden the next run.

    WorkerError when that takes too long.
    """
    deadline_s = time.monotonic() + SETTLE_S
    good = 0
    async with client(slo_s) as session:
        while good < 3:
            start_s = time.monotonic()
            answer = await server.post(session, server.encode(text))
            good = good + 1 if answer is not None and time.monotonic() - start_s <= slo_s else 0
            if time.monotonic() > deadline_s:
                raise WorkerError(
                    f"{server.name} did not answer a single text within the SLO {SETTLE_S:g} s after a run: "
                    "give a longer --slo-ms, or leave it out with --only"
                )
            await asyncio.sleep(0.02)


async def rest(server: Server) -> None:
    """Wait until it no longer computes abandoned requests: the next server's run needs the cores."""
    deadline_s = time.monotonic() + SETTLE_S
    busy_s = server.usage()[0]
    while time.monotonic() < deadline_s:
        await asyncio.sleep(REST_S)
        before_s, busy_s = busy_s, server.usage()[0]
        if busy_s - before_s < IDLE * REST_S:
            return
