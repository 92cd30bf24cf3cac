"""Steady load with every answer checked."""

from __future__ import annotations

import asyncio
import itertools
from types import TracebackType
from typing import Self

import grpc
import numpy as np

from tests.fakes.gateway import Gateway
from tests.fakes.processes import until
from tests.integration.gateway.examples import Example, check, request_of, rows_of


class Load:
    """Requests of mixed lengths and sometimes several rows, `concurrency` at a time, from entering to leaving.

    Leaving the block fails when any request failed, so a test under load needs no check of its own.
    """

    def __init__(self, gateway: Gateway, *, model: str = "emu", longest: int = 512, concurrency: int = 12) -> None:
        self.answered = 0
        self.errors: list[str] = []
        self._gateway = gateway
        self._model = model
        self._longest = longest
        self._concurrency = concurrency
        self._numbers = itertools.count()
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._concurrency)]
        await self.more(2 * self._concurrency)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        if kind is None:
            assert [result for result in results if result is not None] == []
            assert not self.errors, self.errors

    async def more(self, count: int) -> None:
        """Wait until `count` more requests are answered, or one failed."""
        goal = self.answered + count
        await until(lambda: self.answered >= goal or self.errors, f"{count} more answers")
        assert not self.errors, self.errors

    async def _run(self) -> None:
        while not self._stopped:
            number = next(self._numbers)
            random = np.random.default_rng(number)
            lengths = random.integers(1, self._longest + 1, 1 if number % 4 else 3).tolist()
            sent = Example(rows_of(lengths, seed=number), max(lengths), outputs=("embedding",))
            try:
                answer = await self._gateway.infer(request_of(sent, model=self._model), timeout=30)
            except grpc.aio.AioRpcError as error:
                self.errors.append(f"{error.code().name}: {error.details()}")
                return
            check(answer, sent, model=self._model)
            self.answered += 1
