"""The asyncio client: the twin of `Client` in client.py, same methods, same arguments."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from arlo.client import _core
from arlo.client._aio_stream import run
from arlo.client._core import Call, Core
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
from arlo.client.transport import TLS, AsyncGrpcTransport, AsyncTransport
from arlo.clock import monotonic_s


class AsyncClient:
    """A connection to an Arlo gateway, or to any KServe v2 / Triton gRPC server, for one model.

    Belongs to the event loop of its first call; make one and share it between tasks. Use it with `async with`, or await
    close(). Nothing is sent before the first call; the model's description is asked for once, then kept. A cancelled
    task cancels its request on the server.
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
        transport: AsyncTransport | None = None,
    ) -> None:
        """See Client."""
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
        self._transport = transport if transport is not None else AsyncGrpcTransport(self._core.settings)
        self._learning = asyncio.Lock()
        self._closed = False

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
        """See Client.infer."""
        attempts = self._core.attempts(timeout_s, monotonic_s())
        codec = await self._codec(attempts)
        call = self._core.single(
            codec,
            row,
            truncate=truncate,
            max_length=max_length,
            outputs=outputs,
            request_id=request_id,
            parameters=parameters,
        )
        return await self._infer(codec, call, attempts)

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
        """See Client.infer_batch."""
        attempts = self._core.attempts(timeout_s, monotonic_s())
        codec = await self._codec(attempts)
        make = functools.partial(
            self._core.batch,
            codec,
            rows,
            truncate=truncate,
            max_length=max_length,
            outputs=outputs,
            request_id=request_id,
            parameters=parameters,
        )
        call = await _made(make, rows)
        return await self._infer(codec, call, attempts)

    async def embed(
        self,
        texts: Text | Sequence[Row],
        *,
        output: str | None = None,
        truncate: bool = False,
        max_length: int | None = None,
        timeout_s: float | None = None,
        batch_rows: int = _core.DEFAULT_BATCH_ROWS,
    ) -> NDArray[Any]:
        """See Client.embed."""
        attempts = self._core.attempts(timeout_s, monotonic_s())
        codec = await self._codec(attempts)
        name = self._core.sentence_output(codec, output)
        if isinstance(texts, str | tuple):
            call = self._core.single(codec, texts, truncate=truncate, max_length=max_length, outputs=[name])
            return (await self._infer(codec, call, attempts))[name]
        parts = []
        for rows in self._core.chunks(texts, batch_rows):
            make = functools.partial(
                self._core.batch, codec, rows, truncate=truncate, max_length=max_length, outputs=[name]
            )
            call = await _made(make, rows)
            parts.append((await self._infer(codec, call, attempts.again()))[name])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    async def classify(
        self,
        texts: Text | Sequence[Row],
        *,
        truncate: bool = False,
        max_length: int | None = None,
        timeout_s: float | None = None,
        batch_rows: int = _core.DEFAULT_BATCH_ROWS,
        parameters: Parameters | None = None,
    ) -> list[Classification]:
        """See Client.classify."""
        attempts = self._core.attempts(timeout_s, monotonic_s())
        codec = await self._codec(attempts)
        names = outputs_of(codec.info)
        texts = [texts] if isinstance(texts, str | tuple) else texts
        found = []
        for rows in self._core.chunks(texts, batch_rows):
            make = functools.partial(
                self._core.batch,
                codec,
                rows,
                truncate=truncate,
                max_length=max_length,
                outputs=names,
                parameters=parameters,
            )
            call = await _made(make, rows)
            names_of_rows = names_of(codec.info, call.request, len(rows))
            outputs = (await self._infer(codec, call, attempts.again())).outputs
            found += classifications(outputs, names_of_rows, codec.info.label_activation)
        return found

    async def stream(
        self,
        rows: Iterable[Row] | AsyncIterable[Row],
        *,
        window: int = _core.DEFAULT_WINDOW,
        truncate: bool = False,
        max_length: int | None = None,
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
        parameters: Parameters | None = None,
    ) -> AsyncGenerator[Result | ClientError, None]:
        """As Client.stream; `rows` may also be asynchronous. A sync iterable is read on the event loop.

        Close the iterator (contextlib.aclosing) when leaving it early.
        """
        codec = await self._codec(self._core.attempts(timeout_s, monotonic_s()))
        reader = self._core.reader(codec, truncate=truncate, max_length=max_length)
        items = run(self._transport, self._core.window(codec, window, outputs, timeout_s, parameters), reader, rows)
        async with contextlib.aclosing(items):
            async for item in items:
                yield item

    async def classify_stream(
        self,
        texts: Iterable[Row] | AsyncIterable[Row],
        *,
        partial: bool = True,
        window: int = _core.DEFAULT_WINDOW,
        truncate: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[tuple[int, Classification | ClientError], None]:
        """See Client.classify_stream; close the iterator (contextlib.aclosing) when leaving it early."""
        codec = await self._codec(self._core.attempts(timeout_s, monotonic_s()))
        names, wishes = outputs_of(codec.info), wishes_of(codec.info, partial=partial)
        items = self.stream(
            texts, window=window, truncate=truncate, outputs=names, timeout_s=timeout_s, parameters=wishes
        )
        async with contextlib.aclosing(items):
            async for item in items:
                yield classified(codec.info, item)

    async def model_info(self, *, refresh: bool = False) -> ModelInfo:
        """See Client.model_info."""
        if refresh:
            self._core.codec = None
        return (await self._codec(self._core.attempts(None, monotonic_s()))).info

    async def ready(self, *, timeout_s: float | None = None) -> bool:
        """See Client.ready."""
        attempts = self._core.attempts(timeout_s, monotonic_s())
        method, request = self._core.ready_request()
        try:
            return bool((await self._call(method, request, attempts)).ready)
        except (DeadlineExceededError, NotFoundError, UnavailableError):
            return False

    async def close(self) -> None:
        """See Client.close."""
        self._closed = True
        await self._transport.close_async()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _infer(self, codec: Codec, call: Call, attempts: Attempts) -> Result:
        response = await self._send("ModelInfer", call.request, attempts)
        return self._core.result(codec, call, response, attempts, monotonic_s())

    async def _codec(self, attempts: Attempts) -> Codec:
        codec = self._core.codec
        if codec is not None:
            return codec
        left = attempts.left_s(monotonic_s())
        try:
            await asyncio.wait_for(self._learning.acquire(), left)
        except TimeoutError:
            raise DeadlineExceededError("timeout_s passed while waiting for the model's description") from None
        try:
            return self._core.codec or await self._learn(attempts)
        finally:
            self._learning.release()

    async def _learn(self, attempts: Attempts) -> Codec:
        name = self._core.model
        if name is None:
            index = await self._send("RepositoryIndex", self._core.index_request(), attempts.again())
            name = self._core.only_model(index)
        metadata = await self._send("ModelMetadata", self._core.metadata_request(name), attempts.again())
        try:
            config = await self._send("ModelConfig", self._core.config_request(name), attempts.again())
        except UnimplementedError:
            config = None
        return self._core.learn(metadata, config)

    async def _call(self, method: str, request: Any, attempts: Attempts) -> Any:
        if self._closed:
            raise ClosedError("the client is closed: make a new one")
        return await self._transport.call_async(method, request, timeout_s=attempts.begin(monotonic_s()))

    async def _send(self, method: str, request: Any, attempts: Attempts) -> Any:
        while True:
            try:
                return await self._call(method, request, attempts)
            except ClientError as error:
                delay_s = attempts.failed(_core.mark(error, request), monotonic_s())
            await asyncio.sleep(delay_s)


async def _made(make: Callable[[], Call], rows: Sequence[Row]) -> Call:
    return await asyncio.to_thread(make) if _core.is_long(rows) else make()
