"""One gateway in front of several models, each kept by an `arlo serve` of its own: real Triton workers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from arlo.client import AsyncClient
from arlo.client.errors import ClientError
from arlo.workers.emulated.repository import write_emulated_repository
from tests.fakes.processes import nothing_left
from tests.fakes.serving import PORTS, arlo, gateway_alone, serving

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = """\
[model]
name = "{name}"
repository = "{repository}"
slo_ms = {slo_ms}
[deployment]
allocation = {{64 = 1}}
[gateway]
managed = false
several_models = true
grpc_address = "{grpc}"
http_address = "{http}"
admin_address = "{admin}"
[control]
http_address = "127.0.0.1:0"
"""


def configured(folder: Path, name: str, addresses: dict[str, str]) -> Path:
    """A folder with a model's repository and configuration."""
    home = folder / name
    home.mkdir()
    write_emulated_repository(home / "repository", model="emu", max_lengths=(64,), latency_ms=(5,))
    text = CONFIG.format(name=name, repository="repository", slo_ms=500, **addresses)
    (home / "serve.toml").write_text(text)
    return home


async def answer(client: AsyncClient, length: int) -> None:
    ids = np.arange(1, length + 1)
    assert (await client.infer(ids))["embedding"].tolist() == [float(ids.sum())] * 4


async def status(*words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(arlo, "top", "--once", *words)


async def test_two_models_of_one_gateway_come_and_go_by_themselves(tmp_path: Path) -> None:
    text = '[model]\nname = "any"\nrepository = "any"\nslo_ms = 500\n[deployment]\nallocation = {64 = 1}\n'
    (tmp_path / "gateway.toml").write_text(text + PORTS)
    async with gateway_alone(tmp_path / "gateway.toml") as at:
        first, second = (configured(tmp_path, name, at) for name in ("embedder", "reranker"))
        async with AsyncClient(at["grpc"], model="embedder") as one, AsyncClient(at["grpc"], model="reranker") as two:
            async with serving(first) as embedder:
                await answer(one, 20)
                with pytest.raises(ClientError, match="unknown model 'reranker'; this gateway serves 'embedder'"):
                    await answer(two, 20)
                async with serving(second) as reranker:
                    for length in (1, 30, 64):
                        await asyncio.gather(answer(one, length), answer(two, length))
                    asked = await status("--admin", at["admin"], "--json")
                    assert "name a model: this gateway serves 'embedder', 'reranker'" in asked.stderr
                    for name, home in (("embedder", first), ("reranker", second)):
                        told = json.loads((await status("--admin", at["admin"], "--model", name, "--json")).stdout)
                        assert told["health"] == "ready"
                        assert told["deployment"]["model"]["name"] == name
                        assert (
                            json.loads((await status(str(home / "serve.toml"), "--json")).stdout)["health"] == "ready"
                        )
                    # One of them ends in order; the other does not notice.
                    reranker.process.send_signal(signal.SIGTERM)
                    ended = asyncio.create_task(reranker.wait())
                    while not ended.done():
                        await answer(one, 9)
                    assert ended.result() == 0
                    await nothing_left(reranker.mark)
                await answer(one, 64)
                async with serving(second):  # and comes again, where it was
                    await answer(two, 64)
                await embedder.stop()
