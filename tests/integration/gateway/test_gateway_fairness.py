"""Clients share fairly: one with many rows waiting does not go before one with few."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from arlo.clock import monotonic_s
from tests.fakes.gateway import UNLIMITED
from tests.fakes.odd_worker import OddWorker, Sick
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, request_of

pytestmark = pytest.mark.integration

SERVICE_S = 0.02
ROWS = 64


@pytest.mark.parametrize(("named_by", "policy"), [("connection", "late"), ("authorization", "eft")])
async def test_a_large_batch_does_not_delay_the_single_rows_of_others(
    workers: Workers, start: Any, named_by: str, policy: str
) -> None:
    async with OddWorker(Sick(well=True, takes_s=SERVICE_S)) as worker:
        deployment = workers.deployment("emu", [(0, 64)], endpoints=[worker.endpoint], inflight_limit=1, slo_ms=60_000)
        async with start(deployment, dispatch={"policy": policy}) as gateway:
            options = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
            other = grpc.aio.insecure_channel(gateway.grpc, options=options)
            stub = service_pb2_grpc.GRPCInferenceServiceStub(other) if named_by == "connection" else gateway.stub
            lengths = [1 + n % 60 for n in range(ROWS)]
            sent = example(*lengths, outputs=("embedding",))
            heavy = asyncio.ensure_future(
                gateway.infer(request_of(sent), metadata=(("authorization", "Bearer heavy"),))
            )
            await gateway.stats_when(lambda stats: stats.queued > ROWS // 2, "the batch waits")
            light = example(5, outputs=("embedding",))
            metadata = (("authorization", "Bearer light"),) if named_by == "authorization" else ()
            took_s = []
            while len(took_s) < 5:
                began_s = monotonic_s()
                check(await stub.ModelInfer(request_of(light), metadata=metadata), light)
                if heavy.done():  # on a machine where these were slow
                    break
                took_s.append(monotonic_s() - began_s)
            assert len(took_s) >= 3
            # At most what is with the worker, one row of the batch and the row itself.
            assert sorted(took_s)[2] < 6 * SERVICE_S
            check(await heavy, sent)
            await other.close()
