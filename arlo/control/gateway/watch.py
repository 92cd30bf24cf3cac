"""Notices a gateway that runs but does not answer, and has it killed if it is ours to kill. One event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from arlo.clock import monotonic_s
from arlo.control.events import emit
from arlo.control.gateway.pulse import answers

log = logging.getLogger("arlo.control")

CHECK_S = 1.0
SILENT_AFTER = 3  # checks without an answer


class GatewayWatch:
    """Checks the data port at `address` over a new connection each time.

    `kill` is called once when nothing has answered for `hang_timeout_s`; None: the gateway is not ours to kill.
    """

    def __init__(
        self, address: str, *, tls: bool, hang_timeout_s: float, kill: Callable[[], None] | None = None
    ) -> None:
        self._address = address
        self._tls = tls
        self._hang_timeout_s = hang_timeout_s
        self._kill = kill
        self._missed = 0
        self._answered_s = monotonic_s()

    @property
    def silent(self) -> bool:
        """Whether the gateway has missed several checks in a row."""
        return self._missed >= SILENT_AFTER

    def started(self) -> None:
        """Record that the gateway was started (again) just now."""
        self._missed = 0
        self._answered_s = monotonic_s()

    async def run(self) -> None:
        """Watch until cancelled."""
        period_s = min(CHECK_S, self._hang_timeout_s / 4)
        while True:
            began_s = monotonic_s()
            await self.check(timeout_s=period_s)
            await asyncio.sleep(max(0.0, began_s + period_s - monotonic_s()))

    async def check(self, *, timeout_s: float) -> None:
        """Make one check."""
        began_s = monotonic_s()
        if await answers(self._address, tls=self._tls, timeout_s=timeout_s):
            if self.silent:
                silent_s = round(monotonic_s() - self._answered_s, 1)
                emit(log, "gateway_answers", address=self._address, after_s=silent_s)
            self._missed = 0
            self._answered_s = monotonic_s()
            return
        if self._answered_s > began_s:
            return  # it was restarted in the meantime
        self._missed += 1
        if self._missed == SILENT_AFTER:
            emit(log, "gateway_silent", level=logging.ERROR, address=self._address)
        silent_s = monotonic_s() - self._answered_s
        if self._kill is not None and silent_s > self._hang_timeout_s:
            emit(log, "gateway_killed", level=logging.ERROR, address=self._address, silent_s=round(silent_s, 1))
            self._answered_s = monotonic_s()
            self._kill()
