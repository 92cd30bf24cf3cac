"""Tenants of a pipeline and its audits, on real workers that replay records."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc
import pytest

from arlo.clock import monotonic_s
from tests.fakes.gateway import Gateway
from tests.fakes.processes import until
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.piped import (
    BATCHES,
    NAME,
    SAID,
    arrays_of,
    by_tokens,
    cascade_like,
    pipeline_deployment,
    refused,
    request_of,
    short,
)

pytestmark = pytest.mark.integration

PLACES = {"small": (0, 1), "large": (2, 3)}
ONE_STAGE = {"topic": ("small", "large")}


async def audited(gateway: Gateway, rows: int) -> Any:
    """The statistics once so many rows have been audited, or left out."""

    async def through() -> bool:
        audit = (await gateway.stats(NAME)).audit
        return audit.rows + audit.skipped + audit.failed == rows

    await until(through, f"audits of {rows} rows", timeout_s=30)
    return await gateway.stats(NAME)


@pytest.mark.parametrize("honest", [False, True])
async def test_rows_are_audited(workers: Workers, start: Any, honest: bool) -> None:
    """The labels of the most accurate variant are compared; three of four differ, which accuracies allow or do not."""
    deployment = pipeline_deployment(workers, PLACES, ONE_STAGE, audit=1.0)
    for variant in deployment.pipelines[0].stages[0].variants if honest else ():
        variant.accuracy = {"small": 0.4, "large": 0.5}[variant.model]
    async with start(deployment, dispatch=BATCHES) as gateway:
        for record in range(200):
            await gateway.infer(request_of([short(record)], ("logits",), pin="small"), timeout=20)
        for record in range(5):  # which are the most accurate one's already
            await gateway.infer(request_of([short(record)], ("logits",), pin="large"), timeout=20)

        stats = await audited(gateway, 200)
        audit = stats.audit
        assert audit.failed == 0
        assert audit.rows > 100
        same = [SAID["small"][r].argmax() == SAID["large"][r].argmax() for r in range(200)]
        assert abs(1 - audit.disagreed / audit.rows - sum(same) / 200) < 0.1
        assert audit.accuracy == pytest.approx(audit.rows * (0.4 if honest else 0.8))
        assert audit.may_differ == pytest.approx(audit.rows * (1.0 if honest else 0.25))
        assert audit.alarm == (not honest)
        assert gateway.metrics()["arlo_pipeline_audit_alarm"].samples[0].value == (not honest)
        # They are nobody's rows.
        assert stats.outcomes.on_time + stats.outcomes.late == 205
        assert [worth.in_time + worth.late for worth in stats.worth] == [205, 0]
        assert stats.pipeline[0].arrived == 205


async def test_an_audit_goes_all_the_way(workers: Workers, start: Any) -> None:
    """Of rows that end early the whole flow is asked again; those that are sure end early then, too."""
    everywhere = {"small": (0, 1), "middle": (2,), "large": (3,)}
    async with start(cascade_like(workers, everywhere, audit=1.0), dispatch=BATCHES) as gateway:
        for record in range(60):
            await gateway.infer(request_of([short(record)], ("route",), pin="small"), timeout=20)

        stats = await audited(gateway, 60)
        assert stats.audit.failed == 0
        assert stats.pipeline[0].variants[1].answered == stats.audit.rows, "by the better variant"


@pytest.mark.parametrize("by", ["variants", "tokens"])
async def test_a_tenant_that_floods(workers: Workers, start: Any, by: str) -> None:
    """One asks for far more than there is, the other for little: the little is answered, and the flood told why not."""
    if by == "tokens":
        deployment = by_tokens(workers, slo_ms=150, default_timeout_ms=150)
    else:
        deployment = pipeline_deployment(workers, PLACES, ONE_STAGE, slo_ms=150, default_timeout_ms=150)
    for name in ("flood", "calm"):
        deployment.pipelines[0].tenants.add(name=name, share=1)
    async with start(deployment, dispatch=BATCHES) as gateway:
        ended: dict[str, Counter[str]] = {"flood": Counter(), "calm": Counter()}
        prices: set[float] = set()
        end_s = monotonic_s() + 8

        async def client(tenant: str, rows: int, pause_s: float) -> None:
            while monotonic_s() < end_s:
                request = request_of([short(record) for record in range(rows)], ("accuracy_expected",), tenant=tenant)
                try:
                    answer = await gateway.infer(request, timeout=0.5)
                    assert len(arrays_of(answer)["accuracy_expected"]) == rows
                    ended[tenant]["answered"] += 1
                except grpc.aio.AioRpcError as error:
                    over = error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "than their share" in error.details()
                    ended[tenant]["over its share" if over else error.code().name] += 1
                await asyncio.sleep(pause_s)

        async def watch() -> None:
            while monotonic_s() < end_s:
                by_tenant = {worth.of: worth for worth in (await gateway.stats(NAME)).by_tenant}
                assert list(by_tenant) == ["flood", "calm", ""]
                assert by_tenant["calm"].price == 1
                prices.add(by_tenant["flood"].price)
                await asyncio.sleep(0.1)

        await asyncio.gather(*(client("flood", 64, 0) for _ in range(40)), client("calm", 1, 0.05), watch())
        assert max(prices) > 4
        assert ended["flood"]["over its share"] > 0
        calm, flood = (ended[name]["answered"] / ended[name].total() for name in ("calm", "flood"))
        assert calm > 2 * flood
        assert ended["calm"]["over its share"] == 0
        stats = await gateway.stats(NAME)
        for worth in stats.by_tenant[:2]:
            counted = worth.in_time + worth.late + worth.evicted + worth.failed
            assert counted == ended[worth.of].total() * (64 if worth.of == "flood" else 1)
        got = [worth.right / worth.in_time for worth in stats.by_tenant[:2]]  # expected accuracy
        assert got[1] > got[0] + 0.01
        assert stats.by_tenant[0].busy_s > stats.by_tenant[1].busy_s > 0
        assert gateway.metrics()["arlo_tenant_busy_seconds"].samples[0].value > 0

        async def gone_by() -> bool:
            return all(worth.price == 1 for worth in (await gateway.stats(NAME)).by_tenant)

        await until(gone_by, "no tenant pays more", timeout_s=20)
        code, said = await refused(gateway.infer(request_of([short(1)], tenant="clam"), timeout=20))
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "'clam', which is none of the tenants: flood calm" in said
