"""A client's knowledge and decisions, without waiting: no I/O here."""

from __future__ import annotations

import dataclasses
import itertools
import random
import secrets
from collections.abc import Sequence
from typing import Any

from tritonclient.grpc import service_pb2

from arlo.client.codec import Codec
from arlo.client.errors import ClientError, InvalidRequestError, NotFoundError
from arlo.client.model import from_server
from arlo.client.retry import Attempts
from arlo.client.rows import Row
from arlo.client.tokenizer import Tokenizer
from arlo.errors import ConfigError

LONG_TEXT = 20_000  # characters; tokenising more than that would hold up an event loop by milliseconds


@dataclasses.dataclass(kw_only=True)
class Core:
    """Settings, and the model once it is known. Safe for threads: `codec` is set once and never changed in place."""

    model: str | None
    tokenizer: Tokenizer | None
    timeout_s: float | None
    max_message_bytes: int  # of one request or response
    retries: int
    bulk: bool
    codec: Codec | None = None
    _rng: random.Random = dataclasses.field(default_factory=random.Random)
    _id_prefix: str = dataclasses.field(default_factory=lambda: secrets.token_hex(4))
    _ids: itertools.count[int] = dataclasses.field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise ConfigError(f"timeout_s must be above 0, or None for no deadline; not {self.timeout_s}")
        if self.retries < 0:
            raise ConfigError(f"retries must be 0 or more, not {self.retries}")

    def attempts(self, timeout_s: float | None, now_s: float) -> Attempts:
        """The bounds of one call; `timeout_s` None means the client's."""
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidRequestError(f"timeout_s must be above 0, not {timeout_s}")
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        return Attempts(timeout_s=timeout_s, retries=self.retries, rng=self._rng, started_s=now_s)

    def new_id(self) -> str:
        """A request's id: unique in this process, and most likely beyond."""
        return f"{self._id_prefix}-{next(self._ids)}"

    @staticmethod
    def only_model(index: Any) -> str:
        """The name of the one model that is ready. NotFoundError when there is none, or a choice."""
        names = sorted({m.name for m in index.models if m.state in ("", "READY")})
        if len(names) != 1:
            if not names:
                raise NotFoundError("the server has no model ready: wait until it has loaded one")
            raise NotFoundError(f"the server has several models ({', '.join(names)}): pass model= to the client")
        return str(names[0])

    def learn(self, metadata: Any, config: Any | None) -> Codec:
        """Keeps the server's answers; `config` None when it offers no configuration."""
        pad_id = self.tokenizer.pad_id if self.tokenizer else 0
        codec = Codec(from_server(metadata, config), pad_id=pad_id, bulk=self.bulk)
        self.codec = codec
        return codec

    def ready_request(self) -> tuple[str, Any]:
        """The request for whether the model, or the server while the model's name is not known, can serve."""
        name = self.model or (self.codec.info.name if self.codec else None)
        if name is None:
            return "ServerReady", service_pb2.ServerReadyRequest()
        return "ModelReady", service_pb2.ModelReadyRequest(name=name)


def chunks(texts: Sequence[Row], batch_rows: int) -> list[Sequence[Row]]:
    """`texts` in pieces of at most `batch_rows`."""
    if batch_rows < 1:
        raise InvalidRequestError(f"batch_rows must be 1 or more, not {batch_rows}")
    if len(texts) == 0:
        raise InvalidRequestError("no texts: give at least one")
    return [texts[i : i + batch_rows] for i in range(0, len(texts), batch_rows)]


def is_long(rows: Sequence[Row]) -> bool:
    """True when tokenising `rows` takes long enough to do it outside an event loop."""
    size = 0
    for row in rows:
        size += len(row) if isinstance(row, str) else 0
        if size > LONG_TEXT:
            return True
    return False


def mark(error: ClientError, request: Any) -> ClientError:
    """Sets the id of the request in an error that has none."""
    error.request_id = error.request_id or getattr(request, "id", None) or None
    return error
