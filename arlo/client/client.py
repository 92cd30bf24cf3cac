"""The synchronous client. `AsyncClient` in aio.py is its twin: same methods, same arguments."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from arlo.client import _core
from arlo.client._core import Call, Core
from arlo.client._stream import run
from arlo.client.classification import Classification, classifications, classified, names_of, outputs_of, wishes_of
from arlo.client.codec import Codec, Parameters
from arlo.client.errors import (
    ClientError,
    ClosedError,
    DeadlineExceededError,
    NotFoundError,
    UnavailableError,
    UnimplementedError,
)
from arlo.client.model import ModelInfo
from arlo.client.result import Result
from arlo.client.retry import Attempts
from arlo.client.rows import Row
from arlo.client.tokenizer import Text, Tokenizer
from arlo.client.transport import TLS, GrpcTransport, Transport
from arlo.clock import monotonic_s


class Client:
    """A connection to an Arlo gateway, or to any KServe v2 / Triton gRPC server, for one model.

    Safe for threads; make one and share it. Use it as a context manager, or call close(). Nothing is sent before the
    first call; the model's description is asked for once, then kept.
    """

    def __init__(
        self,
        endpoint: str = _core.DEFAULT_ENDPOINT,
        *,
        model: str | None = None,
        tokenizer: str | Path | Tokenizer | None = None,
        timeout_s: float | None = _core.DEFAULT_TIMEOUT_S,
        tls: TLS | None = None,
        token: str | None = None,
        max_message_bytes: int = _core.DEFAULT_MAX_MESSAGE_BYTES,
        retries: int = _core.DEFAULT_RETRIES,
        bulk: bool = False,
        transport: Transport | None = None,
    ) -> None:
        """`endpoint`: host:port. `model`: its name; None takes the only one that the server has.
        `tokenizer`: a tokenizer.json, a folder that holds one, a hub id, or a Tokenizer; None: token ids only.
        `timeout_s`: of a whole call, retries included, sent as the gRPC deadline; None: no deadline.
        `token`: sent as bearer token (in the clear without `tls`). `max_message_bytes`: of one request or response.
        `retries`: further attempts after UNAVAILABLE and RESOURCE_EXHAUSTED. `bulk`: an Arlo gateway serves these
        requests with what others leave; give them time. `transport`: instead of gRPC, for tests.

        Raises ConfigError, and EnvironmentProblem when the tokenizer is not found.
        """
        self._core = Core(
            endpoint=endpoint,
            model=model,
            tokenizer=tokenizer,
            timeout_s=timeout_s,
            tls=tls,
            token=token,
            max_message_bytes=max_message_bytes,
            retries=retries,
            bulk=bulk,
        )
        self._transport = transport if transport is not None else GrpcTransport(self._core.settings)
        self._learning = threading.Lock()
        self._closed = threading.Event()

    def infer(
        self,
        row: Row,
        *,
        truncate: bool = False,
        max_length: int | None = None,
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        parameters: Parameters | None = None,
    ) -> Result:
        """One row in, its outputs without a row dimension out.

        `row`: a text, a pair of texts, token ids (special tokens included), or a mapping of input names to per-token
        values. `max_length`: cap in tokens below the model's own. `truncate`: cut a longer row instead of raising
        TooLongError; text keeps its special tokens, token ids keep their last one. `outputs`: names; None: all.
        `parameters`: of the request, such as those of a cascade (docs/cascades.md).
        Raises ClientError; the tree stands in arlo.client.errors.
        """
        attempts = self._core.attempts(timeout_s, monotonic_s())
        codec = self._codec(attempts)
        call = self._core.single(
            codec,
            row,
            truncate=truncate,
            max_length=max_length,
            outputs=outputs,
            request_id=request_id,
            parameters=parameters,
        )
        return self._infer(codec, call, attempts)

    def infer_batch(
        self,
        rows: Sequence[Row],
        *,
        truncate: bool = False,
        max_length: int | None = None,
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        parameters: Parameters | None = None,
    ) -> Result:
        """Many rows in one request, rows first in every output; `Result.rows` gives one array per row.

        The rows are padded to the longest; the gateway splits them and runs each at its own length. Otherwise as
        `infer`.
        """
        attempts = self._core.attempts(timeout_s, monotonic_s())
        codec = self._codec(attempts)
        call = self._core.batch(
            codec,
            rows,
            truncate=truncate,
            max_length=max_length,
            outputs=outputs,
            request_id=request_id,
            parameters=parameters,
        )
        return self._infer(codec, call, attempts)

    def embed(
        self,
        texts: Text | Sequence[Row],
        *,
        output: str | None = None,
        truncate: bool = False,
        max_length: int | None = None,
        timeout_s: float | None = None,
        batch_rows: int = _core.DEFAULT_BATCH_ROWS,
    ) -> NDArray[Any]:
        """The sentence-level output: [dims...] of one text or pair (a tuple), [texts, dims...] of a list of them.

        `output`: its name, needed only when the model has several. A list is sent `batch_rows` at a time;
        `timeout_s` is for the whole call.
        """
        attempts = self._core.attempts(timeout_s, monotonic_s())
        codec = self._codec(attempts)
        name = self._core.sentence_output(codec, output)
        if isinstance(texts, str | tuple):
            call = self._core.single(codec, texts, truncate=truncate, max_length=max_length, outputs=[name])
            return self._infer(codec, call, attempts)[name]
        parts = []
        for rows in self._core.chunks(texts, batch_rows):
            call = self._core.batch(codec, rows, truncate=truncate, max_length=max_length, outputs=[name])
            parts.append(self._infer(codec, call, attempts.again())[name])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def classify(
        self,
        texts: Text | Sequence[Row],
        *,
        truncate: bool = False,
        max_length: int | None = None,
        timeout_s: float | None = None,
        batch_rows: int = _core.DEFAULT_BATCH_ROWS,
        parameters: Parameters | None = None,
    ) -> list[Classification]:
        """The likeliest label of each text or pair (a tuple): of a cascade with the stage that answered, how sure it
        was and why it ended there; of another classifier from its `logits`.

        A list is sent `batch_rows` at a time; `timeout_s` is for the whole call. `parameters` as of `infer`.
        """
        attempts = self._core.attempts(timeout_s, monotonic_s())
        codec = self._codec(attempts)
        names = outputs_of(codec.info)
        texts = [texts] if isinstance(texts, str | tuple) else texts
        found = []
        for rows in self._core.chunks(texts, batch_rows):
            call = self._core.batch(
                codec, rows, truncate=truncate, max_length=max_length, outputs=names, parameters=parameters
            )
            names_of_rows = names_of(codec.info, call.request, len(rows))
            outputs = self._infer(codec, call, attempts.again()).outputs
            found += classifications(outputs, names_of_rows, codec.info.label_activation)
        return found

    def stream(
        self,
        rows: Iterable[Row],
        *,
        window: int = _core.DEFAULT_WINDOW,
        truncate: bool = False,
        max_length: int | None = None,
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
        parameters: Parameters | None = None,
    ) -> Iterator[Result | ClientError]:
        """Many requests over one ModelStreamInfer call; yields in order of completion, exactly one item per row.

        `id` of a Result, and `request_id` of a ClientError, is the row's position as text ("0", "1", ...). At most
        `window` requests are under way; `rows` may be endless and is read in another thread. `timeout_s` is for each
        request, from its sending. What goes wrong with one row comes as its item; a broken stream is opened again and
        its unanswered requests are sent again, at most `retries` times in a row; then the ClientError is raised.
        """
        codec = self._codec(self._core.attempts(timeout_s, monotonic_s()))
        reader = self._core.reader(codec, truncate=truncate, max_length=max_length)
        return run(self._transport, self._core.window(codec, window, outputs, timeout_s, parameters), reader, rows)

    def classify_stream(
        self,
        texts: Iterable[Row],
        *,
        partial: bool = True,
        window: int = _core.DEFAULT_WINDOW,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[tuple[int, Classification | ClientError]]:
        """As `classify`, over one stream: (position of the text, what is said of it), in order of completion.

        `partial`: of a cascade also what an early stage says of a text while it goes on (`final` False, no reason),
        at once; the answer follows. `texts`, `window` and `timeout_s` as of `stream`.
        """
        codec = self._codec(self._core.attempts(timeout_s, monotonic_s()))
        names, wishes = outputs_of(codec.info), wishes_of(codec.info, partial=partial)
        for item in self.stream(
            texts, window=window, truncate=truncate, outputs=names, timeout_s=timeout_s, parameters=wishes
        ):
            yield classified(codec.info, item)

    def model_info(self, *, refresh: bool = False) -> ModelInfo:
        """What the server says of the model: inputs, outputs, longest row. Asked once; `refresh` asks again."""
        if refresh:
            self._core.codec = None
        return self._codec(self._core.attempts(None, monotonic_s())).info

    def ready(self, *, timeout_s: float | None = None) -> bool:
        """True when the server answers and says that the model can be served. Not retried; other errors are raised."""
        attempts = self._core.attempts(timeout_s, monotonic_s())
        method, request = self._core.ready_request()
        try:
            return bool(self._call(method, request, attempts).ready)
        except (DeadlineExceededError, NotFoundError, UnavailableError):
            return False

    def close(self) -> None:
        """Let go of the connection; calls under way end with RequestCancelledError. Idempotent."""
        self._closed.set()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _infer(self, codec: Codec, call: Call, attempts: Attempts) -> Result:
        response = self._send("ModelInfer", call.request, attempts)
        return self._core.result(codec, call, response, attempts, monotonic_s())

    def _codec(self, attempts: Attempts) -> Codec:
        codec = self._core.codec
        if codec is not None:
            return codec
        left = attempts.left_s(monotonic_s())
        if not self._learning.acquire(timeout=-1 if left is None else left):
            raise DeadlineExceededError("timeout_s passed while waiting for the model's description")
        try:
            return self._core.codec or self._learn(attempts)
        finally:
            self._learning.release()

    def _learn(self, attempts: Attempts) -> Codec:
        name = self._core.model
        if name is None:
            index = self._send("RepositoryIndex", self._core.index_request(), attempts.again())
            name = self._core.only_model(index)
        metadata = self._send("ModelMetadata", self._core.metadata_request(name), attempts.again())
        try:
            config = self._send("ModelConfig", self._core.config_request(name), attempts.again())
        except UnimplementedError:
            config = None
        return self._core.learn(metadata, config)

    def _call(self, method: str, request: Any, attempts: Attempts) -> Any:
        if self._closed.is_set():
            raise ClosedError("the client is closed: make a new one")
        return self._transport.call(method, request, timeout_s=attempts.begin(monotonic_s()))

    def _send(self, method: str, request: Any, attempts: Attempts) -> Any:
        while True:
            try:
                return self._call(method, request, attempts)
            except ClientError as error:
                delay_s = attempts.failed(_core.mark(error, request), monotonic_s())
            self._closed.wait(delay_s)
