"""A gateway that hangs is noticed where clients would notice it; one whose HTTP port is held by others goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from arlo import config as configuration
from arlo.config import Config
from arlo.control.gateway.process import Addresses, GatewayProcess
from arlo.control.gateway.pulse import answers
from arlo.workers.triton.stubs import state
from tests.fakes.certificates import Authority
from tests.fakes.emulated_cluster import cluster_of, configure, endpoint, runtime, seen, settled
from tests.fakes.processes import until
from tests.fakes.steady_load import steady_load

pytestmark = pytest.mark.integration

CONFIG = """\
[model]
repository = "repository"
slo_ms = 500
[workers]
linger_s = 0
[deployment]
allocation = {16 = 1}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
"""


@contextlib.asynccontextmanager
async def gateway_of(folder: Path, more: str = "") -> AsyncIterator[tuple[GatewayProcess, Addresses]]:
    gateway = GatewayProcess(configuration.parse(CONFIG + more, base=folder))
    addresses = await gateway.start()
    try:
        yield gateway, addresses
    finally:
        await gateway.kill()


def with_gateway(config: Config, **changes: Any) -> Config:
    return dataclasses.replace(config, gateway=dataclasses.replace(config.gateway, **changes))


@pytest.mark.parametrize("kind", ["plain", "tls", "mutual", "token"])
async def test_a_gateway_answers_until_it_is_stopped(tmp_path: Path, kind: str) -> None:
    more = ""
    if kind in ("tls", "mutual"):
        authority = Authority(tmp_path / "tls")
        certificate, key = authority.issue("server")
        more = f'tls_certificate_file = "{certificate}"\ntls_key_file = "{key}"\n'
        more += f'tls_client_ca_file = "{authority.ca}"\n' if kind == "mutual" else ""
    elif kind == "token":
        (tmp_path / "token").write_text("secret")
        more = 'bearer_token_file = "token"\n'
    tls = kind in ("tls", "mutual")
    async with gateway_of(tmp_path, more) as (gateway, addresses):
        assert gateway.pid is not None
        assert await answers(addresses.grpc, tls=tls, timeout_s=10)
        pid = gateway.pid
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: state(pid) == "T", "it is stopped")
        assert not await answers(addresses.grpc, tls=tls, timeout_s=0.5)
        os.kill(pid, signal.SIGCONT)
        assert await answers(addresses.grpc, tls=tls, timeout_s=10)
    assert not await answers(addresses.grpc, tls=tls, timeout_s=1)


async def test_a_gateway_that_hangs_is_restarted_where_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="arlo")
    config = with_gateway(configure(tmp_path, runtime(64, 2), allocation="{64 = 1}"), hang_timeout_s=3)
    async with cluster_of(config) as cluster:
        await settled(cluster)
        before, address = cluster.gateway_pid, endpoint(cluster)
        assert before is not None
        os.kill(before, signal.SIGSTOP)
        await seen(lambda: cluster.status().state == "degraded", "it is told")
        assert not cluster.status().gateway_up
        await seen(lambda: cluster.gateway_pid not in (before, None), "another one")
        assert endpoint(cluster) == address
        await settled(cluster)
        await seen(lambda: cluster.status().gateway_up and cluster.status().state == "serving", "it serves")
        async with steady_load(endpoint(cluster)) as load:
            await load.more(50)
        load.check()
        names = [record.__dict__.get("event") for record in caplog.records]
        assert [n for n in names if n in ("gateway_silent", "gateway_killed", "gateway_died")] == [
            "gateway_silent",
            "gateway_killed",
            "gateway_died",
        ]
