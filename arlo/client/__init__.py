"""The client SDK: text or token ids in, NumPy out, from an Arlo gateway or any KServe v2 / Triton gRPC server.

    from arlo.client import Client

    with Client("127.0.0.1:8001", tokenizer="model/") as client:
        vectors = client.embed(["a short text", "another one"])

`Client` is for threads, `AsyncClient` for asyncio; `MockTransport` replaces a server in tests. docs/client.md is the
guide.
"""

from arlo.client.classification import Classification
from arlo.client.client import AsyncClient, Client
from arlo.client.errors import (
    AuthError,
    ClientError,
    ClosedError,
    DeadlineExceededError,
    InvalidRequestError,
    MessageTooLargeError,
    NotFoundError,
    OverloadedError,
    RequestCancelledError,
    ServerError,
    TooLongError,
    UnavailableError,
    UnimplementedError,
)
from arlo.client.mock import MockRequest, MockTransport
from arlo.client.model import ModelInfo, TensorInfo
from arlo.client.result import Result, Timing
from arlo.client.rows import Row
from arlo.client.tokenizer import Tokenizer
from arlo.client.transport import TLS, AsyncTransport, Transport

__all__ = [
    "TLS",
    "AsyncClient",
    "AsyncTransport",
    "AuthError",
    "Classification",
    "Client",
    "ClientError",
    "ClosedError",
    "DeadlineExceededError",
    "InvalidRequestError",
    "MessageTooLargeError",
    "MockRequest",
    "MockTransport",
    "ModelInfo",
    "NotFoundError",
    "OverloadedError",
    "RequestCancelledError",
    "Result",
    "Row",
    "ServerError",
    "TensorInfo",
    "Timing",
    "Tokenizer",
    "TooLongError",
    "Transport",
    "UnavailableError",
    "UnimplementedError",
]
