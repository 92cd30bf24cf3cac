"""The error tree and the mapping of gRPC codes."""

from __future__ import annotations

import inspect
import pickle
import random
import re

import grpc
import pytest

from arlo.client import errors
from arlo.client.errors import ClientError, DeadlineExceededError, OverloadedError, UnavailableError, from_status
from arlo.client.retry import FIRST_BACKOFF_S, LONGEST_BACKOFF_S, Attempts, backoff_s
from arlo.errors import ArloError

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, ClientError)]


def test_the_tree_at_the_top_of_the_file_is_the_real_one() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([│├└─ ]*)(\w+)", line)
        if match and match[2] in {*(c.__name__ for c in CLASSES), "ArloError"} and ("─" in match[1] or not path):
            path = [*path[: len(match[1]) // 4], match[2]]
            drawn[match[2]] = path[-2] if len(path) > 1 else ""
    assert drawn.pop("ArloError") == ""
    assert drawn == {c.__name__: c.__base__.__name__ for c in CLASSES if c.__base__ is not None}
    assert issubclass(ClientError, ArloError)
    assert ClientError.exit_code == 7


EXPECTED = {
    "CANCELLED": errors.RequestCancelledError,
    "UNKNOWN": errors.ServerError,
    "INVALID_ARGUMENT": errors.InvalidRequestError,
    "DEADLINE_EXCEEDED": errors.DeadlineExceededError,
    "NOT_FOUND": errors.NotFoundError,
    "ALREADY_EXISTS": errors.ServerError,
    "PERMISSION_DENIED": errors.AuthError,
    "RESOURCE_EXHAUSTED": errors.OverloadedError,
    "FAILED_PRECONDITION": errors.InvalidRequestError,
    "ABORTED": errors.ServerError,
    "OUT_OF_RANGE": errors.InvalidRequestError,
    "UNIMPLEMENTED": errors.UnimplementedError,
    "INTERNAL": errors.ServerError,
    "UNAVAILABLE": errors.UnavailableError,
    "DATA_LOSS": errors.ServerError,
    "UNAUTHENTICATED": errors.AuthError,
}


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c is not grpc.StatusCode.OK], ids=lambda c: c.name)
def test_every_grpc_code_has_its_error(code: grpc.StatusCode) -> None:
    error = from_status(code.name, "the words", request_id="7")
    assert type(error) is EXPECTED[code.name]
    assert (error.code, error.request_id, error.attempts) == (code.name, "7", 0)
    assert str(error).startswith("the words")
    assert errors.is_retryable(error) == (code.name in ("UNAVAILABLE", "RESOURCE_EXHAUSTED"))


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        ("RESOURCE_EXHAUSTED", "CLIENT: Sent message larger than max (9 vs. 4)", errors.MessageTooLargeError),
        ("RESOURCE_EXHAUSTED", "SERVER: Received message larger than max (9 vs. 4)", errors.MessageTooLargeError),
        ("UNAVAILABLE", "Exceeds maximum queue size", errors.OverloadedError),
        ("UNAVAILABLE", "Request timeout expired", errors.DeadlineExceededError),
    ],
)
def test_codes_that_say_something_else(code: str, words: str, expected: type[ClientError]) -> None:
    assert type(from_status(code, words)) is expected


def test_a_status_without_words_still_says_something() -> None:
    assert "INTERNAL" in str(from_status("INTERNAL", ""))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_errors_survive_pickling(cls: type[ClientError]) -> None:
    error = cls("words", code="INTERNAL", request_id="3")
    error.attempts = 2
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (cls, "words", vars(error))


def attempts(*, timeout_s: float | None = 10.0, retries: int = 2) -> Attempts:
    return Attempts(timeout_s=timeout_s, retries=retries, rng=random.Random(1), started_s=100.0)


def test_no_retry_that_the_deadline_would_cut_off() -> None:
    tries = attempts()
    tries.begin(100.0)
    with pytest.raises(OverloadedError):
        tries.failed(OverloadedError("x"), 109.99)


def test_an_attempt_gets_what_is_left() -> None:
    tries = attempts()
    assert tries.begin(100.0) == 10.0
    assert tries.begin(104.0) == 6.0
    with pytest.raises(DeadlineExceededError):
        tries.begin(110.0)
    assert tries.made == 2
    assert tries.elapsed_us(101.5) == 1_500_000


def test_no_deadline() -> None:
    tries = attempts(timeout_s=None)
    assert tries.begin(1e9) is None
    assert tries.failed(UnavailableError("x"), 1e9) > 0


def test_backoff_doubles_up_to_a_bound_and_is_half_chance() -> None:
    class Fixed(random.Random):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = value

        def random(self) -> float:
            return self.value

    top = [backoff_s(n, Fixed(1.0)) for n in range(1, 9)]
    assert top[:3] == [FIRST_BACKOFF_S, 2 * FIRST_BACKOFF_S, 4 * FIRST_BACKOFF_S]
    assert top[-1] == LONGEST_BACKOFF_S == backoff_s(10_000, Fixed(1.0))
    assert [backoff_s(n, Fixed(0.0)) for n in range(1, 9)] == [t / 2 for t in top]
