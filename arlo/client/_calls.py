"""Every call of `Client` and `AsyncClient`, written once as coroutines, which wait as `Waiting` says."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from arlo.client import _stream
from arlo.client._core import Core, chunks, is_long, mark
from arlo.client._waiting import Waiting
from arlo.client._window import Window
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
from arlo.client.rows import Row, RowReader
from arlo.client.tokenizer import Text, Tokenizer
from arlo.client.transport import TLS, ChannelSettings
from arlo.clock import monotonic_s

DEFAULT_ENDPOINT = "127.0.0.1:8001"
DEFAULT_TIMEOUT_S = 30.0
DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
DEFAULT_RETRIES = 2
DEFAULT_WINDOW = 64
DEFAULT_BATCH_ROWS = 64

TransportT = TypeVar("TransportT")
RowsT = TypeVar("RowsT", bound=Iterable[Row] | AsyncIterable[Row])


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A request that is ready to be sent, with the data for decoding its answer."""

    codec: Codec
    request: Any
    lengths: tuple[int, ...]


class Calls(abc.ABC, Generic[TransportT, RowsT]):
    """A client of one model over a transport."""

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        model: str | None = None,
        tokenizer: str | Path | Tokenizer | None = None,
        timeout_s: float | None = DEFAULT_TIMEOUT_S,
        tls: TLS | None = None,
        token: str | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        retries: int = DEFAULT_RETRIES,
        bulk: bool = False,
        transport: TransportT | None = None,
    ) -> None:
        """`endpoint`: host:port. `model`: its name; None means the only one that the server has.
        `tokenizer`: a tokenizer.json, a folder that holds one, a hub id, or a Tokenizer; None: token ids only.
        `timeout_s`: of a whole call, retries included, sent as the gRPC deadline; None: no deadline.
        `token`: sent as bearer token (in the clear without `tls`). `max_message_bytes`: of one request or response.
        `retries`: further attempts after UNAVAILABLE and RESOURCE_EXHAUSTED. `bulk`: an Arlo gateway serves these
        requests with idle capacity; give them time. `transport`: instead of gRPC, for tests.

        Raises ConfigError, and EnvironmentProblem when the tokenizer is not found.
        """
        settings = ChannelSettings(endpoint=endpoint, tls=tls, token=token, max_message_bytes=max_message_bytes)
        self._core = Core(
            model=model,
            tokenizer=tokenizer if tokenizer is None or isinstance(tokenizer, Tokenizer) else Tokenizer(tokenizer),
            timeout_s=timeout_s,
            max_message_bytes=max_message_bytes,
            retries=retries,
            bulk=bulk,
        )
        self._waiting = self._waits(settings, transport)
        self._learning = self._waiting.queue()  # a lock: the holder of its one item asks for the model's description
        self._learning.put_nowait(True)
        self._closed = False

    @abc.abstractmethod
    def _waits(self, settings: ChannelSettings, transport: TransportT | None) -> Waiting:
        """How calls over this transport wait; None: over gRPC."""

    async def infer(
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
        `parameters`: of the request, such as those of a cascade (docs/flows.md).
        Raises ClientError; the tree is in arlo.client.errors.
        """
        attempts = self._core.attempts(timeout_s, monotonic_s())
        wishes: dict[str, Any] = {"outputs": outputs, "request_id": request_id, "parameters": parameters}
        call = await self._made(await self._codec(attempts), [row], truncate=truncate, max_length=max_length, **wishes)
        return await self._infer(call, attempts, batched=False)

    async def infer_batch(
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

        The rows are padded to the longest; the gateway splits them and runs each at its own length. Otherwise like
        `infer`.
        """
        attempts = self._core.attempts(timeout_s, monotonic_s())
        wishes: dict[str, Any] = {"outputs": outputs, "request_id": request_id, "parameters": parameters}
        call = await self._made(await self._codec(attempts), rows, truncate=truncate, max_length=max_length, **wishes)
        return await self._infer(call, attempts, batched=True)

    async def embed(
        self,
        texts: Text | Sequence[Row],
        *,
        output: str | None = None,
        truncate: bool = False,
        max_length: int | None = None,
        timeout_s: float | None = None,
        batch_rows: int = DEFAULT_BATCH_ROWS,
    ) -> NDArray[Any]:
        """The sentence-level output: [dims...] of one text or pair (a tuple), [texts, dims...] of a list of them.

        `output`: its name, needed only when the model has several. A list is sent `batch_rows` at a time;
        `timeout_s` is for the whole call.
        """
        attempts = self._core.attempts(timeout_s, monotonic_s())
        codec = await self._codec(attempts)
        name = codec.info.sentence_output() if output is None else output
        batched = not isinstance(texts, str | tuple)
        parts = []
        for rows in chunks([texts] if isinstance(texts, str | tuple) else texts, batch_rows):
            call = await self._made(codec, rows, truncate=truncate, max_length=max_length, outputs=[name])
            parts.append((await self._infer(call, attempts.again(), batched=batched))[name])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    async def classify(
        self,
        texts: Text | Sequence[Row],
        *,
        truncate: bool = False,
        max_length: int | None = None,
        timeout_s: float | None = None,
        batch_rows: int = DEFAULT_BATCH_ROWS,
        parameters: Parameters | None = None,
    ) -> list[Classification]:
        """The likeliest label of each text or pair (a tuple). A cascade adds the answering stage, its confidence and
        the reason why the text ended there; another classifier is read from its `logits`.

        A list is sent `batch_rows` at a time; `timeout_s` is for the whole call. `parameters`: see `infer`.
        """
        attempts = self._core.attempts(timeout_s, monotonic_s())
        codec = await self._codec(attempts)
        wishes: dict[str, Any] = {"outputs": outputs_of(codec.info), "parameters": parameters}
        found = []
        for rows in chunks([texts] if isinstance(texts, str | tuple) else texts, batch_rows):
            call = await self._made(codec, rows, truncate=truncate, max_length=max_length, **wishes)
            names = names_of(codec.info, call.request, len(rows))
            outputs = (await self._infer(call, attempts.again(), batched=True)).outputs
            found += classifications(outputs, names, codec.info.label_activation)
        return found

    async def stream(
        self,
        rows: RowsT,
        *,
        window: int = DEFAULT_WINDOW,
        truncate: bool = False,
        max_length: int | None = None,
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
        parameters: Parameters | None = None,
    ) -> AsyncGenerator[Result | ClientError, None]:
        """Many requests over one ModelStreamInfer call; yields in order of completion, exactly one item per row.

        `id` of a Result, and `request_id` of a ClientError, is the row's position as text ("0", "1", ...). At most
        `window` requests are under way; `rows` may be endless: `Client` reads it in another thread, `AsyncClient`,
        which also takes an asynchronous one, on the event loop. `timeout_s` is for each request, from its sending. An
        error of one row comes as its item; a broken stream is opened again and its unanswered requests are sent again,
        at most `retries` times in a row; then the ClientError is raised.
        Close the iterator (contextlib.closing or aclosing) when leaving it early.
        """
        items = await self._opened(
            rows,
            window=window,
            truncate=truncate,
            max_length=max_length,
            outputs=outputs,
            timeout_s=timeout_s,
            parameters=parameters,
        )
        async with contextlib.aclosing(items):
            async for item in items:
                yield item

    async def classify_stream(
        self,
        texts: RowsT,
        *,
        partial: bool = True,
        window: int = DEFAULT_WINDOW,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[tuple[int, Classification | ClientError], None]:
        """Classifications over one stream: (position of the text, its classification), in order of completion.

        `partial`: a cascade also yields an early stage's classification of a text that goes on (`final` False, no
        reason), at once; the answer follows. `texts`, `window`, `timeout_s`: see `stream`; otherwise like `classify`.
        """
        info = (await self._codec(self._core.attempts(timeout_s, monotonic_s()))).info
        names, wishes = outputs_of(info), wishes_of(info, partial=partial)
        items = await self._opened(
            texts, window=window, truncate=truncate, outputs=names, timeout_s=timeout_s, parameters=wishes
        )
        async with contextlib.aclosing(items):
            async for item in items:
                yield classified(info, item)

    async def model_info(self, *, refresh: bool = False) -> ModelInfo:
        """The server's description of the model: inputs, outputs, longest row. Asked once; `refresh` asks again."""
        if refresh:
            self._core.codec = None
        return (await self._codec(self._core.attempts(None, monotonic_s()))).info

    async def ready(self, *, timeout_s: float | None = None) -> bool:
        """True when the server answers and reports the model as servable. Not retried; other errors are raised."""
        attempts = self._core.attempts(timeout_s, monotonic_s())
        try:
            return bool((await self._call(*self._core.ready_request(), attempts)).ready)
        except (DeadlineExceededError, NotFoundError, UnavailableError):
            return False

    async def close(self) -> None:
        """Close the connection; calls under way end with RequestCancelledError. Idempotent."""
        self._closed = True
        await self._waiting.close()

    async def _made(
        self,
        codec: Codec,
        rows: Sequence[Row],
        *,
        truncate: bool,
        max_length: int | None,
        outputs: Sequence[str] | None,
        request_id: str | None = None,
        parameters: Parameters | None = None,
    ) -> _Call:
        read = functools.partial(RowReader(codec, self._core.tokenizer, max_length, truncate).read, rows)
        prepared = await self._waiting.compute(read) if is_long(rows) else read()
        name = request_id if request_id is not None else self._core.new_id()
        request = codec.encode(prepared, request_id=name, outputs=outputs, parameters=parameters)
        return _Call(codec, request, tuple(row.ids.size for row in prepared))

    async def _infer(self, call: _Call, attempts: Attempts, *, batched: bool) -> Result:
        response = await self._send("ModelInfer", call.request, attempts)
        elapsed_us = attempts.elapsed_us(monotonic_s())
        try:
            return call.codec.decode(
                response, call.lengths, batched=batched, attempts=attempts.made, elapsed_us=elapsed_us
            )
        except ClientError as error:
            error.attempts = attempts.made
            raise mark(error, call.request) from None

    async def _opened(
        self,
        rows: RowsT,
        *,
        window: int,
        truncate: bool,
        max_length: int | None = None,
        outputs: Sequence[str] | None,
        timeout_s: float | None,
        parameters: Parameters | None,
    ) -> AsyncGenerator[Result | ClientError, None]:
        codec = await self._codec(self._core.attempts(timeout_s, monotonic_s()))
        under_way = Window(
            codec=codec,
            size=window,
            outputs=outputs,
            timeout_s=self._core.timeout_s if timeout_s is None else timeout_s,
            parameters=parameters,
            retries=self._core.retries,
            max_message_bytes=self._core.max_message_bytes,
        )
        return _stream.run(self._waiting, under_way, RowReader(codec, self._core.tokenizer, max_length, truncate), rows)

    async def _codec(self, attempts: Attempts) -> Codec:
        if self._core.codec is not None:
            return self._core.codec
        if not await self._learning.take(attempts.left_s(monotonic_s())):
            raise DeadlineExceededError("timeout_s passed while waiting for the model's description")
        try:
            return self._core.codec or await self._learn(attempts)
        finally:
            self._learning.put_nowait(True)

    async def _learn(self, attempts: Attempts) -> Codec:
        name = self._core.model
        if name is None:
            index = service_pb2.RepositoryIndexRequest(ready=True)
            name = self._core.only_model(await self._send("RepositoryIndex", index, attempts.again()))
        metadata = await self._send("ModelMetadata", service_pb2.ModelMetadataRequest(name=name), attempts.again())
        try:
            config = await self._send("ModelConfig", service_pb2.ModelConfigRequest(name=name), attempts.again())
        except UnimplementedError:
            config = None
        return self._core.learn(metadata, config)

    async def _call(self, method: str, request: Any, attempts: Attempts) -> Any:
        if self._closed:
            raise ClosedError("the client is closed: make a new one")
        return await self._waiting.call(method, request, attempts.begin(monotonic_s()))

    async def _send(self, method: str, request: Any, attempts: Attempts) -> Any:
        while True:
            try:
                return await self._call(method, request, attempts)
            except ClientError as error:
                delay_s = attempts.failed(mark(error, request), monotonic_s())
            await self._waiting.sleep(delay_s)
