"""Drives `Client` and `AsyncClient` through one blocking face, so that each test runs for both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Self

from arlo.client import AsyncClient, Client, ClientError, Result

KINDS = ("sync", "async")


class Twin:
    """A client of either kind; every method of the client, blocking. Use as a context manager."""

    def __init__(self, kind: str, *args: Any, **kwargs: Any) -> None:
        # Not asyncio.Runner: it takes away the event loop that pytest-asyncio has set for the thread.
        self._loop = asyncio.new_event_loop() if kind == "async" else None
        self.client: Any = (AsyncClient if self._loop else Client)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        loop = self._loop
        if loop is None:
            return method
        return lambda *args, **kwargs: loop.run_until_complete(method(*args, **kwargs))

    def stream(self, rows: Any, **kwargs: Any) -> Iterator[Result | ClientError]:
        if self._loop is None:
            yield from self.client.stream(rows, **kwargs)
            return
        items = self.client.stream(rows, **kwargs)
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(anext(items))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(items.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._loop is not None:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
