"""Attacks on the data port, small ones: the others are answered meanwhile and after, the memory comes back."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import numpy as np
import pytest

from tests.fakes.attacks.hit import was_refused
from tests.fakes.attacks.run import ATTACKS, asked_anew, run_attack
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import Example, check, example, one_row, request_of
from tests.integration.gateway.load import Load

pytestmark = pytest.mark.integration

SECONDS, SCALE = 0.4, 0.06
LEFT_MB = 150  # that the gateway may keep: some answers, connections that it has not missed yet, its allocator's
# An answer of 786 kB to a few hundred bytes.
WIDE = request_of(Example((np.ones(512, np.int64),), 512, mask=False, typed=True), model="wide")
SMALL = one_row(5, model="wide")
SMALL.outputs.add(name="embedding")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(ATTACKS))
async def test_others_are_answered(workers: Workers, start: Any, name: str) -> None:
    attack = ATTACKS[name]
    async with start(workers.deployment("wide", [(0, 512), (1, 512)]), log_level="warning") as gateway:
        pids = [await workers.pid(worker) for worker in range(2)]
        if attack.descriptors:
            resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (attack.descriptors, attack.descriptors))
        async with Load(gateway, model="wide", concurrency=2, longest=64) as load:
            before_mb = gateway.rss_mb()
            report = await run_attack(
                *(name, gateway.grpc, SMALL.SerializeToString(), WIDE.SerializeToString()),
                seconds=SECONDS,
                scale=SCALE,
                most_s=20,
            )
            await load.more(10)
        assert not report["cut_off"]
        assert report["good_answered"] == report["good_asked"]
        assert was_refused(report) or not attack.refused, report
        assert await asyncio.to_thread(asked_anew, gateway.grpc, SMALL.SerializeToString()) == "grpc-status 0"
        check(await gateway.infer(request_of(example(30), model="wide")), example(30), model="wide", token_dims=384)
        await until(lambda: gateway.rss_mb() < before_mb + LEFT_MB, f"memory is back: {before_mb:.0f} MB", timeout_s=10)
        assert [await workers.pid(worker) for worker in range(2)] == pids
