"""A stand-in for the gateway binary: an admin port, and a data port that knows no call.

It reads --config, writes the ready file, and drains on SIGTERM.

`ARLO_FAKE_GATEWAY` makes it misbehave: `exit` ends it at once, `mute` keeps it from ever being ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import grpc

from tests.fakes.admin_server import AdminServer


async def main() -> int:
    config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
    how = os.environ.get("ARLO_FAKE_GATEWAY", "")
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if how == "exit":
        print("cannot bind 127.0.0.1:8001", flush=True)
        return 3
    if how == "mute":
        await stop.wait()
        return 0
    data = grpc.aio.server()
    host, _, _ = config["grpc_address"].rpartition(":")
    bound = f"{host}:{data.add_insecure_port(config['grpc_address'])}"
    await data.start()
    async with AdminServer(config["admin_address"]) as server:
        ready = Path(config["ready_file"])
        addresses = {"grpc": bound, "http": config["http_address"], "admin": server.address}
        ready.with_suffix(".new").write_text(json.dumps(addresses))
        ready.with_suffix(".new").replace(ready)
        await stop.wait()
        await data.stop(0)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
