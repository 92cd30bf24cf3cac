"""Free TCP ports."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket

from arlo.errors import WorkerError


class ReservedPort:
    """A free port that stays ours until `release`, while a child that sets SO_REUSEPORT listens on it.

    With `port`, that port is reserved: an adopted child of this user may be listening on it already.
    The socket is bound and never listens: the kernel gives the port to no other process, connections reach the child
    alone, and are refused while no child listens. So an endpoint stays the same over restarts, without a race.
    """

    def __init__(self, address: str, port: int = 0) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._socket.bind((address, port))
        except OSError as error:
            self._socket.close()
            wanted = f"port {port} is not free" if port else "no free port"
            raise WorkerError(f"{wanted} on {address}: {error}") from None
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Give the port back. Idempotent."""
        self._socket.close()


async def accepts(address: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        _, writer = await asyncio.open_connection(address, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


_given: set[tuple[str, int]] = set()  # ports returned in this process; none is returned twice


def free_port(address: str) -> int:
    """A port that was free just now, and was not returned in this process before; another process may take it.

    It lies below the ports that the kernel gives to outgoing connections (32768 and up by default on Linux), so no
    connection of another program takes it meanwhile.
    """
    for port in random.sample(range(20_000, 32_768), 100):
        if (address, port) in _given:
            continue
        with contextlib.suppress(WorkerError):
            ReservedPort(address, port).release()
            _given.add((address, port))
            return port
    raise WorkerError(f"no free port from 20000 to 32767 on {address}: 100 were tried")
