"""gRPC status -> outcome: the only place where replay decides the outcome of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import grpc
import numpy as np
from numpy.typing import NDArray

from arlo.client.errors import (
    ClientError,
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    from_status,
)

Outcome: TypeAlias = Literal["on_time", "late", "rejected", "expired", "cancelled", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

CODE_OF: Mapping[str, int] = {status.name: int(status.value[0]) for status in grpc.StatusCode}
NAME_OF: Mapping[int, str] = {number: name for name, number in CODE_OF.items()}

# Everything else is a failure, including a missing model or a rejected token: a replay that measures nothing but
# refusals should not look like a success.
_BY_ERROR: tuple[tuple[type[ClientError], Outcome], ...] = (
    (InvalidRequestError, "rejected"),
    (OverloadedError, "rejected"),
    (DeadlineExceededError, "expired"),
    (RequestCancelledError, "cancelled"),
)


def outcome_of_error(code: int, message: str) -> Outcome:
    """The outcome of a request that ended in a gRPC status other than OK.

    The message also counts: Triton answers UNAVAILABLE for a full queue (rejected) and for a timeout in it (expired).
    """
    error = from_status(NAME_OF.get(code, "UNKNOWN"), message)
    return next((outcome for kind, outcome in _BY_ERROR if isinstance(error, kind)), "failed")


def classify(
    code: NDArray[np.uint8],
    error: NDArray[np.uint8],
    latency_us: NDArray[np.int64],
    messages: Mapping[int, str],
    slo_us: float,
) -> NDArray[np.uint8]:
    """Outcomes as indexes of OUTCOMES, uint8[n].

    `code`: gRPC status codes, uint8[n]. `error`: 0, or the key in `messages` of what the server said. `latency_us`:
    from the scheduled instant. On time is an answer within the SLO.
    """
    result = np.where(latency_us <= slo_us, OUTCOMES.index("on_time"), OUTCOMES.index("late")).astype(np.uint8)
    bad = code != 0
    for pair in np.unique(np.stack([code[bad], error[bad]], axis=1), axis=0):
        outcome = outcome_of_error(int(pair[0]), messages.get(int(pair[1]), ""))
        result[(code == pair[0]) & (error == pair[1]) & bad] = OUTCOMES.index(outcome)
    return result
