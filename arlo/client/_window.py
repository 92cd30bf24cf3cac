"""The requests under way on a stream: pure bookkeeping that the sync and the async driver share."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from typing import Any

from arlo.client.codec import Codec, Parameters, is_final
from arlo.client.errors import (
    ClientError,
    DeadlineExceededError,
    InvalidRequestError,
    MessageTooLargeError,
    ServerError,
    from_status,
    is_retryable,
)
from arlo.client.result import Result
from arlo.client.retry import Attempts, backoff_s
from arlo.client.rows import Row, RowReader

# A stream has no status per answer; the Arlo gateway writes the status name before the message.
_STATUS = re.compile(r"\[([A-Z_]+)\] (.*)", re.DOTALL)


@dataclasses.dataclass(slots=True)
class Entry:
    """One request: made, then sent once or, after a broken stream, again."""

    id: str
    request: Any
    length: int
    attempts: Attempts | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Window:
    """The requests under way. One lock, or one event loop, guards add, answer, expire, broken and resend."""

    codec: Codec
    size: int
    outputs: Sequence[str] | None
    timeout_s: float | None
    parameters: Parameters | None
    retries: int
    max_message_bytes: int
    _rng: random.Random = dataclasses.field(default_factory=random.Random)
    # In order of first sending, so the first deadline is the first entry's.
    _under_way: dict[str, Entry] = dataclasses.field(default_factory=dict)
    _breaks: int = 0  # in a row, without an answer between

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InvalidRequestError(f"window must be 1 or more, not {self.size}")
        if self.outputs is not None:
            self.codec.check_outputs(self.outputs)

    def __len__(self) -> int:
        return len(self._under_way)

    def prepare(self, reader: RowReader, position: int, row: Row) -> Entry | ClientError:
        """Makes the request, or the error in place of the row. Needs no guard."""
        name = str(position)
        try:
            (prepared,) = reader.read([row])
            request = self.codec.encode(
                [prepared],
                request_id=name,
                outputs=self.outputs,
                timeout_us=None if self.timeout_s is None else max(1, round(self.timeout_s * 1e6)),
                parameters=self.parameters,
            )
            # A message over the limit would end the stream for all of them.
            if (size := request.ByteSize()) > self.max_message_bytes:
                raise MessageTooLargeError(f"the request has {size} bytes, max_message_bytes is too small for it")
        except ClientError as error:
            error.request_id = name
            return error
        return Entry(name, request, prepared.ids.size)

    def add(self, entry: Entry, now_s: float) -> None:
        """The request is being sent for the first time."""
        entry.attempts = Attempts(timeout_s=self.timeout_s, retries=self.retries, rng=self._rng, started_s=now_s)
        entry.attempts.begin(now_s)
        self._under_way[entry.id] = entry

    def answer(self, response: Any, now_s: float) -> Result | ClientError | None:
        """The meaning of a ModelStreamInferResponse; None for one that is no longer awaited."""
        self._breaks = 0
        inner = response.infer_response
        name = inner.id
        if response.error_message and not name:  # without a request id: of the only request, or of the stream
            if len(self._under_way) != 1:
                raise ServerError(f"the server failed a request without saying which: {response.error_message}")
            name = next(iter(self._under_way))
        entry = self._under_way.get(name) if not is_final(inner) else self._under_way.pop(name, None)
        if entry is None or entry.attempts is None:
            return None
        try:
            if response.error_message:
                found = _STATUS.fullmatch(response.error_message)
                raise from_status(*(found.groups() if found else ("UNKNOWN", response.error_message)))
            return self.codec.decode(
                inner,
                (entry.length,),
                batched=False,
                attempts=entry.attempts.made,
                elapsed_us=entry.attempts.elapsed_us(now_s),
            )
        except ClientError as error:
            return self._named(error, entry)

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the next deadline, 0 when it has passed; None when there is none."""
        if self.timeout_s is None or not self._under_way:
            return None
        first = next(iter(self._under_way.values()))
        try:
            return None if first.attempts is None else first.attempts.left_s(now_s)
        except DeadlineExceededError:
            return 0.0

    def expire(self, now_s: float) -> list[ClientError]:
        """Takes out the requests whose deadline has passed."""
        errors: list[ClientError] = []
        while self.wait_s(now_s) == 0.0:
            entry = self._under_way.pop(next(iter(self._under_way)))
            message = f"no answer within {self.timeout_s} s: pass a larger timeout_s, or a smaller window"
            errors.append(self._named(DeadlineExceededError(message, code="DEADLINE_EXCEEDED"), entry))
        return errors

    def broken(self, error: ClientError) -> float:
        """The stream ended. Seconds to wait before opening it again; raises `error` when it must not be."""
        self._breaks += 1
        if self._breaks > self.retries or not is_retryable(error):
            error.attempts = self._breaks
            raise error
        return backoff_s(self._breaks, self._rng)

    def resend(self, now_s: float) -> list[Any]:
        """The requests to send on a new stream, oldest first, each with the time it has left."""
        requests = []
        for entry in self._under_way.values():
            if entry.attempts is None:
                continue
            try:
                left = entry.attempts.begin(now_s)
            except DeadlineExceededError:
                continue  # expire() will find it
            if left is not None:
                entry.request.parameters["timeout"].int64_param = max(1, round(left * 1e6))
            requests.append(entry.request)
        return requests

    @staticmethod
    def _named(error: ClientError, entry: Entry) -> ClientError:
        error.request_id = entry.id
        error.attempts = entry.attempts.made if entry.attempts is not None else 0
        return error
