"""Errors of the client, and the only place where gRPC codes are mapped to them.

ArloError
└── ClientError (exit code 7)    carries `code`, `request_id` and `attempts`
    ├── InvalidRequestError      the request is wrong; sending it again cannot help
    │   ├── TooLongError         more tokens than the model takes; carries `length` and `max_length`
    │   └── MessageTooLargeError more bytes than the client or the server lets through
    ├── NotFoundError            no such model, version or output
    ├── AuthError                token or client certificate missing, wrong or not enough
    ├── UnimplementedError       the server does not offer this
    ├── OverloadedError          refused because queues are full                             retried
    ├── UnavailableError         no connection, or no worker to answer                       retried
    ├── DeadlineExceededError    no answer within timeout_s
    ├── RequestCancelledError    cancelled before the answer came
    ├── ServerError              the server failed, or answered nonsense
    └── ClosedError              the client was used after close() or on another event loop

Mistakes in how a client is set up raise ConfigError; a missing tokenizer raises EnvironmentProblem (both arlo.errors).
"""

from __future__ import annotations

from arlo.errors import ArloError


class ClientError(ArloError):
    """Base of the errors that `arlo.client` raises once a client exists.

    `code` is the gRPC status name ("UNAVAILABLE") or None when nothing was sent; `request_id` and `attempts` (times
    sent) are filled in by the client.
    """

    exit_code = 7

    def __init__(self, message: str, *, code: str | None = None, request_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id
        self.attempts = 0


class InvalidRequestError(ClientError):
    """The request is wrong; sending it again cannot help."""


class TooLongError(InvalidRequestError):
    """A row has `length` tokens, more than `max_length`. Pass truncate=True to cut it."""

    def __init__(self, message: str, *, length: int = 0, max_length: int = 0, **of_all: str | None) -> None:
        super().__init__(message, **of_all)
        self.length = length
        self.max_length = max_length


class MessageTooLargeError(InvalidRequestError):
    """More bytes than the client's max_message_bytes or the server's limit."""


class NotFoundError(ClientError):
    """No such model, version or output."""


class AuthError(ClientError):
    """Token or client certificate missing, wrong or not enough."""


class UnimplementedError(ClientError):
    """The server does not offer this."""


class OverloadedError(ClientError):
    """Refused because the server's queues are full. Retried."""


class UnavailableError(ClientError):
    """No connection, or no instance that could answer. Retried."""


class DeadlineExceededError(ClientError):
    """No answer within timeout_s."""


class RequestCancelledError(ClientError):
    """The call was cancelled before the answer came."""


class ServerError(ClientError):
    """The server failed, or its answer makes no sense."""


class ClosedError(ClientError):
    """The client was used after close(), or on another event loop than its first."""


_BY_CODE: dict[str, type[ClientError]] = {
    "CANCELLED": RequestCancelledError,
    "INVALID_ARGUMENT": InvalidRequestError,
    "FAILED_PRECONDITION": InvalidRequestError,
    "OUT_OF_RANGE": InvalidRequestError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
    "NOT_FOUND": NotFoundError,
    "PERMISSION_DENIED": AuthError,
    "UNAUTHENTICATED": AuthError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "UNIMPLEMENTED": UnimplementedError,
    "UNAVAILABLE": UnavailableError,
}

# Advice, added if the server's message has none.
_ADVICE: dict[type[ClientError], str] = {
    AuthError: "pass token= (and tls= with cert and key if the server wants a client certificate)",
    OverloadedError: "send fewer requests at a time, or allow more time and retries",
    UnavailableError: "check that the server runs and that endpoint and tls are right",
    DeadlineExceededError: "pass a larger timeout_s, or send less at a time",
    MessageTooLargeError: "send fewer rows at a time, or raise max_message_bytes on both sides",
}


def from_status(code: str, details: str, *, request_id: str | None = None) -> ClientError:
    """The error for a gRPC status: `code` is its name, for example "NOT_FOUND"; `details` the server's words.

    Some status codes mislead: gRPC answers RESOURCE_EXHAUSTED for messages that are too large, and Triton answers
    UNAVAILABLE for a full queue and for a request that timed out in it.
    """
    kind = _BY_CODE.get(code, ServerError)
    if code == "RESOURCE_EXHAUSTED" and "larger than max" in details:
        kind = MessageTooLargeError
    elif code == "UNAVAILABLE" and "maximum queue size" in details:
        kind = OverloadedError
    elif code == "UNAVAILABLE" and "timeout expired" in details:
        kind = DeadlineExceededError
    message = details or f"the server answered {code} without a reason"
    advice = _ADVICE.get(kind)
    return kind(f"{message} ({advice})" if advice else message, code=code, request_id=request_id)


def is_retryable(error: ClientError) -> bool:
    """True where sending the same request again is safe and may help. Inference is idempotent."""
    return isinstance(error, OverloadedError | UnavailableError)
