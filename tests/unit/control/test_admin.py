"""The admin client against a server of the contract in this process."""

from __future__ import annotations

import pytest

from arlo.control.gateway.admin import AdminClient, GatewayUnreachableError
from arlo.errors import GatewayError
from tests.fakes.admin_server import AdminServer, deployment


async def test_apply_is_versioned_and_idempotent() -> None:
    async with AdminServer() as server, AdminClient(server.address) as admin:
        assert (await admin.get_deployment()).version == 0
        assert (await admin.apply(deployment(3))).changed
        assert not (await admin.apply(deployment(3))).changed
        assert await admin.get_deployment() == deployment(3)
        with pytest.raises(GatewayError, match=r"refused Apply: version 3 is in force \(FAILED_PRECONDITION\)"):
            await admin.apply(deployment(2))
        assert server.applied == 1


async def test_drain() -> None:
    async with AdminServer() as server, AdminClient(server.address) as admin:
        await admin.apply(deployment(1))
        await admin.drain("w0.m_64")
        assert server.drained == ["w0.m_64"]
        with pytest.raises(GatewayError, match="no instance w9"):
            await admin.drain("w9")


async def test_stats_once_and_again() -> None:
    async with AdminServer() as server, AdminClient(server.address) as admin:
        await admin.apply(deployment(4))
        assert (await admin.stats()).deployment_version == 4
        seen = 0
        async for stats in admin.watch_stats(interval_ms=100):
            assert [level.max_length for level in stats.levels] == [64]
            seen += 1
            if seen == 3:
                break


async def test_nobody_there() -> None:
    async with AdminServer() as server:
        address = server.address
    async with AdminClient(address) as admin:
        with pytest.raises(GatewayUnreachableError, match=r"is `arlo serve` or `arlo serve gateway` running"):
            await admin.get_deployment()
        with pytest.raises(GatewayUnreachableError):
            await admin.stats()
