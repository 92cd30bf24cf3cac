"""The rules for sending again: pure, `now` and randomness are arguments."""

from __future__ import annotations

import dataclasses
import random

from arlo.client.errors import ClientError, DeadlineExceededError, is_retryable

FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 2.0


def backoff_s(failures: int, rng: random.Random) -> float:
    """Seconds to wait after the `failures`-th failure (from 1): doubling, with half of it random, so that clients
    refused together do not return together.
    """
    full = min(FIRST_BACKOFF_S * 2.0 ** min(failures - 1, 16), LONGEST_BACKOFF_S)
    return full * (0.5 + 0.5 * rng.random())


@dataclasses.dataclass(slots=True, kw_only=True)
class Attempts:
    """Counts the attempts of one call and bounds them by number and by deadline. Instants are monotonic seconds."""

    timeout_s: float | None  # None: no deadline
    retries: int
    rng: random.Random
    started_s: float
    made: int = 0  # requests sent

    def left_s(self, now_s: float) -> float | None:
        """Seconds until the deadline (None: there is none). DeadlineExceededError when it has passed."""
        if self.timeout_s is None:
            return None
        left = self.started_s + self.timeout_s - now_s
        if left <= 0:
            raise DeadlineExceededError("timeout_s passed before the request could be sent: pass a larger timeout_s")
        return left

    def begin(self, now_s: float) -> float | None:
        """Counts an attempt and returns the seconds it may take, as left_s does."""
        left = self.left_s(now_s)
        self.made += 1
        return left

    def failed(self, error: ClientError, now_s: float) -> float:
        """Seconds to wait before the next attempt. Raises `error` when there must be none."""
        error.attempts = self.made
        if self.made > self.retries or not is_retryable(error):
            raise error
        delay = backoff_s(self.made, self.rng)
        if self.timeout_s is not None and now_s + delay >= self.started_s + self.timeout_s:
            raise error
        return delay

    def again(self) -> Attempts:
        """A further call under the same deadline: attempts count from 0."""
        return dataclasses.replace(self, made=0)

    def elapsed_us(self, now_s: float) -> int:
        """Microseconds since the call began."""
        return round((now_s - self.started_s) * 1e6)
