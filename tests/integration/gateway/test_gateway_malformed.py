"""Mutations of good requests, after which the gateway answers as before and holds no more memory.

What is made of each, tests/cpp compares with protobuf: DamagedMessagesAreRefusedOrReadAsProtobufReadsThem, the fuzzers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from arlo import proto
from tests.fakes.gateway import ACTIVE, Gateway
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import check, example, request_of

pytestmark = pytest.mark.integration

# A mutation may do no harm, ask for what is not there, or set a timeout that is too short.
EXPECTED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "DEADLINE_EXCEEDED"}


def good_requests() -> list[bytes]:
    """Small ones of every kind, so that most mutations hit structure and not tensor data."""
    bodies = []
    for number, sent in enumerate(
        (
            example(1),
            example(3, 2, id="two rows"),
            example(4, typed=True),
            example(2, 5, typed=True, width=6),
            example(3, mask=False, outputs=("embedding",)),
            example(6, outputs=("embedding", "last_hidden_state"), id="ünï"),
        )
    ):
        request = request_of(sent, timeout_us=5_000_000 if number % 2 else None)
        request.parameters["sequence_id"].int64_param = 0
        request.parameters["mine"].string_param = "yes"
        request.model_version = "1"
        bodies.append(request.SerializeToString())
    return bodies


def mutated(random: np.random.Generator, bodies: list[bytes]) -> bytes:
    """One of the bodies with one to four changes."""
    body = bytearray(bodies[random.integers(len(bodies))])
    for _ in range(random.integers(1, 5)):
        if not body:
            break
        at = int(random.integers(len(body)))
        size = int(random.integers(1, 17))
        kind = random.integers(7)
        if kind == 0:
            body[at] ^= 1 << int(random.integers(8))
        elif kind == 1:
            body[at] = int(random.choice([0, 1, 0x7F, 0x80, 0xFF]))
        elif kind == 2:
            del body[at : at + size]
        elif kind == 3:
            body[at:at] = random.bytes(size)
        elif kind == 4:
            del body[at:]
        elif kind == 5:
            body[at:at] = body[at : at + size] * int(random.integers(1, 20))
        else:
            other = bodies[random.integers(len(bodies))]
            body[at:] = other[int(random.integers(len(other))) :]
    return bytes(body)


async def still_right(gateway: Gateway) -> None:
    """Answers are right, and no instance was blamed for what clients sent."""
    for sent in (example(1), example(512), example(5, 100, 300, id="after"), example(9, typed=True)):
        check(await gateway.infer(request_of(sent), timeout=10), sent)
    stats = await gateway.stats_when(lambda stats: stats.queued + stats.in_flight == 0, "idle")
    assert [instance.state for instance in stats.instances] == [ACTIVE] * 4
    assert (stats.ejections, stats.retries, stats.outcomes.failed) == (0, 0, 0)


@pytest.mark.sanitized
async def test_malformed_requests_on_one_stream(gateway: Gateway) -> None:
    """Each has its answer, good or bad, and the stream lives on."""
    random = np.random.default_rng(7)
    bodies = good_requests()
    count = 2000

    async def write(stream: Any) -> None:
        for _ in range(count):
            await stream.write(mutated(random, bodies))
        await stream.done_writing()

    async def codes_of_a_stream() -> Counter[str]:
        stream = gateway.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        writing = asyncio.create_task(write(stream))
        codes: Counter[str] = Counter()
        while (answer := await asyncio.wait_for(stream.read(), 30)) != grpc.aio.EOF:
            message = service_pb2.ModelStreamInferResponse.FromString(answer)
            codes[message.error_message.partition("]")[0].lstrip("[") or "OK"] += 1
        await writing
        assert await stream.code() == grpc.StatusCode.OK
        return codes

    await codes_of_a_stream()  # caches and arenas are full now
    before_mb = gateway.rss_mb()
    codes = await codes_of_a_stream()
    assert codes.total() == count
    assert set(codes) <= EXPECTED
    assert codes["OK"] > 30
    assert gateway.rss_mb() - before_mb < 20
    await still_right(gateway)


@pytest.mark.sanitized
async def test_malformed_deployments(workers: Workers, start: Any) -> None:
    """The admin port is not for strangers, but it must not fall over either."""
    random = np.random.default_rng(11)
    deployment = workers.deployment("emu", [(0, 64), (1, 512)])
    request = proto.message("ApplyRequest")(deployment=deployment)
    async with start(deployment) as gateway, grpc.aio.insecure_channel(gateway.admin) as admin:
        apply = admin.unary_unary("/arlo.v1.Admin/Apply")
        codes: Counter[str] = Counter()
        for version in range(2, 202):
            request.deployment.version = version
            codes[(await apply(mutated(random, [request.SerializeToString()]), timeout=10).code()).name] += 1
        assert set(codes) >= {"OK", "INVALID_ARGUMENT", "INTERNAL"}  # INTERNAL: gRPC could not parse it
        # Some are deployments of a later version, though of none so late that the right one cannot be put back.
        reply = await gateway.call("GetDeployment")
        deployment.version = reply.deployment.version + 1
        await gateway.apply(deployment)
        for sent in (example(1), example(512), example(5, 100, 300)):
            check(await gateway.infer(request_of(sent), timeout=10), sent)
