"""The deployment in force is kept as it should be: against drains, spent versions and other control planes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from arlo.control.mode import mode_of
from arlo.control.reconcile import deployments as module
from arlo.control.reconcile.deployments import (
    LAST_VERSION,
    Deployments,
    OtherControlPlaneError,
    VersionSpentError,
    owner_label,
)
from tests.fakes.admin_server import AdminServer
from tests.fakes.placements import MANIFEST, configured

FIRST, SECOND = owner_label(1_000), owner_label(2_000)


@contextlib.asynccontextmanager
async def plane(server: AdminServer, owner: str, *names: str) -> AsyncIterator[Deployments]:
    one = Deployments(mode_of(configured("allocation = {64 = 1, 512 = 1}"), MANIFEST), Counter(), owner=owner)
    one.connect(server.address)
    one.always = {"m_512"}
    one.instances = {f"w{number}": [name] for number, name in enumerate(names)}
    one.endpoints = {f"w{number}": f"127.0.0.1:{9000 + number}" for number in range(len(names))}
    try:
        yield one
    finally:
        await one.close()


async def test_what_another_hand_has_drained_comes_back() -> None:
    async with AdminServer() as server, plane(server, FIRST, "m_64", "m_512") as one:
        await one.ensure(states=True)
        await one.ensure(states=True)
        assert (server.applied, server.deployment.version) == (1, 1)
        for instance in server.deployment.instances:
            await one.admin.drain(instance.id)
        assert len(server.drained) == 2
        await one.ensure(states=True)
        assert not server.drained
        assert (server.applied, server.deployment.version) == (2, 2)
        await one.ensure(states=True)
        assert server.applied == 2


async def test_a_version_that_nothing_can_follow_is_said() -> None:
    async with AdminServer() as server, plane(server, FIRST, "m_512") as one:
        await one.ensure()
        server.deployment.version = LAST_VERSION
        server.deployment.instances[0].endpoint = "elsewhere:1"
        with pytest.raises(VersionSpentError, match="Restart the gateway"):
            await one.ensure()
        server.deployment.version = LAST_VERSION - 1
        await one.ensure()
        assert server.deployment.instances[0].endpoint == "127.0.0.1:9000"


async def keep(one: Deployments) -> None:
    while True:
        await one.ensure()
        await asyncio.sleep(0.05)


async def test_the_second_of_two_control_planes_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OBJECT_S", 1.0)
    async with (
        AdminServer() as server,
        plane(server, FIRST, "m_64", "m_512") as first,
        plane(server, SECOND, "m_512", "m_64") as second,
    ):
        await first.ensure()
        keeping = asyncio.create_task(keep(first))
        try:
            with pytest.raises(OtherControlPlaneError, match="another control plane keeps the deployment"):
                await second.claim()
            await asyncio.sleep(0.2)
            applied = server.applied
            assert server.deployment.owner == FIRST
            assert [item.runtime for item in server.deployment.instances] == ["m_64", "m_512"]
            await second.release()  # changes nothing, as it is not the second one's
            await asyncio.sleep(0.2)
            assert server.applied == applied, "they do not go on applying over each other"
        finally:
            keeping.cancel()


async def test_one_that_began_all_the_same_steps_back_too() -> None:
    """Both started on a gateway without a deployment."""
    async with (
        AdminServer() as server,
        plane(server, FIRST, "m_64", "m_512") as first,
        plane(server, SECOND, "m_512", "m_64") as second,
    ):
        await first.claim()
        await second.claim()
        await first.ensure()
        await second.ensure()
        await first.ensure()
        with pytest.raises(OtherControlPlaneError):
            await second.ensure()
        assert server.deployment.owner == FIRST


async def test_one_that_was_killed_is_followed_and_one_that_ended_is_followed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OBJECT_S", 0.3)
    async with AdminServer() as server, plane(server, FIRST, "m_64", "m_512") as first:
        await first.ensure()
        async with plane(server, SECOND, "m_64", "m_512") as second:
            await second.claim()  # nothing objects
            await second.ensure()
            assert server.deployment.owner == SECOND
            assert server.applied == 2, "the claim, and nothing more"
            await second.release()
            assert server.deployment.owner == ""
            assert len(server.deployment.instances) == 2
        monkeypatch.setattr(module, "OBJECT_S", 1e9)
        async with plane(server, owner_label(3_000), "m_64", "m_512") as third:
            async with asyncio.timeout(10):
                await third.claim()
