"""The SDK sender: an open loop over arlo.client.AsyncClient, so that text takes the way that users' text takes.

One event loop in Python: good for some hundred requests per second. Above that its own late sends grow; they are
counted.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arlo.client import AsyncClient, Result
from arlo.client.errors import ClientError, DeadlineExceededError, InvalidRequestError, UnavailableError
from arlo.clock import monotonic_s
from arlo.replay.outcomes import CODE_OF
from arlo.replay.progress import ProgressHook, from_counts
from arlo.replay.records import SENT
from arlo.replay.sender import CONNECT_S, GRACE_S, PROGRESS_EVERY_S, Job, SendResult

_TOLD = ("level", "max_length", "demoted", "queue_us", "execute_us", "total_us", "computed_tokens")
_MOST_KINDS = 200
_STOP_CHECK_S = 0.25
_UNSENT: tuple[tuple[type[ClientError], str], ...] = (
    (InvalidRequestError, "INVALID_ARGUMENT"),
    (DeadlineExceededError, "DEADLINE_EXCEEDED"),
    (UnavailableError, "UNAVAILABLE"),
)


def send(job: Job, *, on_progress: ProgressHook | None, stop: threading.Event) -> SendResult:
    """See arlo.replay.sender.Sender. Runs an event loop of its own: not callable from a coroutine."""
    return asyncio.run(_Run(job, on_progress, stop).run())


def _unsent(error: ClientError) -> str:
    """The status of a request that the client ended before it was sent."""
    return next((code for kind, code in _UNSENT if isinstance(error, kind)), "INTERNAL")


class _Run:
    def __init__(self, job: Job, on_progress: ProgressHook | None, stop: threading.Event) -> None:
        self._job = job
        self._on_progress = on_progress
        self._stop = stop
        self._records = np.zeros(len(job.send_at_us), SENT)
        for column in _TOLD:
            self._records[column] = -1
        self._messages: dict[int, str] = {}
        self._kinds: dict[tuple[int, str], int] = {}  # code, message without its numbers -> key of the first such one
        self._responses: dict[int, dict[str, NDArray[Any]]] = {}
        self._sent = 0
        self._codes: dict[int, int] = {}
        self._on_time = 0
        self._late_sends = 0
        self._recent_us: list[int] = []
        self._shown_s = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._start_s = 0.0

    async def run(self) -> SendResult:
        job = self._job
        client = AsyncClient(
            job.endpoint,
            model=job.codec.info.name,
            tokenizer=job.tokenizer,
            timeout_s=None,
            tls=job.tls,
            token=job.token,
            retries=0,  # what fails must be seen
        )
        async with client:
            for i in range(job.warmup):
                await client.infer(self._content(i % len(job.send_at_us)), timeout_s=CONNECT_S)
            cpu_s = time.process_time()
            self._start_s = monotonic_s() + 0.05
            shower = asyncio.create_task(self._show())
            interrupted = await self._send_all(client)
            undrained = await self._drain(GRACE_S if interrupted else job.drain_s)
            interrupted = interrupted or self._stop.is_set()
            shower.cancel()
            cpu_s = time.process_time() - cpu_s
        return SendResult(
            records=self._records[: self._sent],
            messages=self._messages,
            responses=self._responses,
            interrupted=interrupted,
            undrained=undrained,
            cpu_s=cpu_s,
        )

    def _now_us(self) -> int:
        return round((monotonic_s() - self._start_s) * 1e6)

    def _content(self, index: int) -> Any:
        row = self._job.rows.of(index)
        return row.text if self._job.tokenizer is not None and row.text is not None else row.ids

    async def _send_all(self, client: AsyncClient) -> bool:
        """True when it was interrupted: by `stop`, or by Ctrl-C, which asyncio.run turns into a cancellation."""
        try:
            for index, at_us in enumerate(self._job.send_at_us.tolist()):
                while (left_s := (at_us - self._now_us()) / 1e6) > 0:
                    if self._stop.is_set():
                        return True
                    await asyncio.sleep(min(left_s, _STOP_CHECK_S))
                if self._stop.is_set():
                    return True
                self._begin(client, index, at_us)
                if index % 16 == 0:
                    await asyncio.sleep(0)  # when all are late, answers must still get their turn
        except asyncio.CancelledError:
            self._stop.set()
            return True
        return False

    def _begin(self, client: AsyncClient, index: int, at_us: int) -> None:
        record = self._records[index]
        record["index"] = index
        record["payload"] = self._job.rows.which[index]
        record["scheduled_us"] = at_us
        record["sent_us"] = sent_us = self._now_us()
        self._sent += 1
        self._late_sends += sent_us - at_us > self._job.late_us
        task = asyncio.create_task(self._one(client, index, at_us))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, client: AsyncClient, index: int, at_us: int) -> None:
        timeout_us = self._job.timeout_us
        timeout_s = max(at_us + timeout_us - self._now_us(), 1) / 1e6 if timeout_us else None
        try:
            result = await client.infer(self._content(index), timeout_s=timeout_s)
        except asyncio.CancelledError:
            self._finish(index, at_us, CODE_OF["CANCELLED"])
            raise
        except ClientError as error:
            code = CODE_OF[error.code or _unsent(error)]
            self._records["error"][index] = self._key(code, str(error))
            self._finish(index, at_us, code)
        else:
            self._finish(index, at_us, 0)
            self._keep(index, result)

    def _finish(self, index: int, at_us: int, code: int) -> None:
        done_us = self._now_us()
        record = self._records[index]
        record["done_us"], record["code"] = done_us, code
        self._codes[code] = self._codes.get(code, 0) + 1
        if code == 0:
            self._recent_us.append(done_us - at_us)
            self._on_time += done_us - at_us <= self._job.slo_us

    def _keep(self, index: int, result: Result) -> None:
        record, timing = self._records[index], result.timing
        for column in _TOLD:
            value = getattr(timing, column)
            if value is not None:
                record[column] = int(value)
        every = self._job.keep_responses
        if every and index % every == 0:
            self._responses[index] = dict(result.outputs)

    def _key(self, code: int, message: str) -> int:
        """As Report::Error of src/loadgen: messages that differ in their numbers alone are one."""
        kind = (code, re.sub(r"[0-9]+", "#", message))
        if kind not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            kind = next((each for each in self._kinds if each[0] == code), kind)
        key = self._kinds.setdefault(kind, len(self._kinds) + 1)
        self._messages.setdefault(key, message)
        return key

    async def _drain(self, wait_s: float) -> bool:
        """Wait for what is in flight; what is left then is cancelled, and True returned."""
        until_s = monotonic_s() + wait_s
        while self._tasks and (left_s := until_s - monotonic_s()) > 0:
            try:
                await asyncio.wait(self._tasks, timeout=min(left_s, _STOP_CHECK_S))
            except asyncio.CancelledError:
                self._stop.set()
            if self._stop.is_set():
                until_s = min(until_s, monotonic_s() + GRACE_S)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return bool(left)

    async def _show(self) -> None:
        while self._on_progress is not None:
            await asyncio.sleep(PROGRESS_EVERY_S)
            t_s = self._now_us() / 1e6
            recent, self._recent_us = self._recent_us, []
            p50, p98 = np.percentile(recent, [50, 98]) if recent else (0.0, 0.0)
            window_s, self._shown_s = max(t_s - self._shown_s, 1e-3), t_s
            self._on_progress(
                from_counts(
                    t_s=t_s,
                    total=len(self._records),
                    sent=self._sent,
                    codes=dict(self._codes),
                    on_time=self._on_time,
                    recent={"answered_per_s": len(recent) / window_s, "p50_us": p50, "p98_us": p98},
                    late_sends=self._late_sends,
                )
            )
