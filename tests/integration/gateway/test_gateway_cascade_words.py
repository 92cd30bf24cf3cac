"""Words that do not matter are left out on the way from stage to stage, and more of them where there is no time."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from tests.fakes.triton_workers import Workers
from tests.integration.gateway.replayed import (
    BATCHES,
    EVERYWHERE,
    REASONS,
    STAGES,
    Plan,
    arrays_of,
    ask,
    cascade_deployment,
    parameters_of,
    recorded,
    request_of,
)

pytestmark = pytest.mark.integration


async def test_unimportant_words_are_left_out(workers: Workers, start: Any) -> None:
    """A row of 40 tokens goes on in 32: to the shorter runtime, and in no fewer."""
    plans = {"prunes": Plan(((1.0001, 1.0001),), alpha=0.7)}
    async with start(cascade_deployment(workers, EVERYWHERE, plans), dispatch=BATCHES) as gateway:
        answer = await ask(gateway, [5], [40])
        said = parameters_of(answer)
        assert said["pruned_tokens"] == 8
        assert said["computed_tokens"] == 32  # of its last stage
        np.testing.assert_array_equal(arrays_of(answer)["logits"][0], recorded("large")[0][5])
        assert (await gateway.stats("kinds")).stages[1].pruned_tokens == 8
        assert parameters_of(await ask(gateway, [5], [20]))["pruned_tokens"] == 0  # there is no shorter runtime
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(gateway, [5], [20], outputs=("importance",))
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.sanitized
async def test_more_words_are_left_out_where_there_is_no_time(workers: Workers, start: Any) -> None:
    """The last stage's longer runtime is known to take far too long: such rows go on in fewer words, within bounds, and
    others end with what they have, or at a stage before it."""
    plans = {
        "bounded": Plan(((1.0001, 1.0001),), alpha=0.01),
        "harder": Plan(((1.0001, 1.0001),), alpha=0.01, alpha_max=2.0),
        "skips": Plan(((1.0001, 1.0001),), alpha=0.01, skip=[(0.9999,)]),
    }
    deployment = cascade_deployment(workers, EVERYWHERE, plans)
    for runtime in deployment.runtimes:
        if runtime.model == "large" and runtime.max_length == 64:
            for point in runtime.latency:
                point.latency_us = 3_600_000_000
    async with start(deployment, dispatch=BATCHES) as gateway:
        ended = {}
        for point in plans:
            answer = await gateway.infer(request_of([5], [60], cascade=point), timeout=60)
            outputs, said = arrays_of(answer), parameters_of(answer)
            stage = int(outputs["cascade_stage"][0])
            np.testing.assert_array_equal(outputs["logits"][0], recorded(STAGES[stage])[0][5])
            ended[point] = (stage, REASONS[outputs["cascade_reason"][0]], said["pruned_tokens"])
        assert ended["bounded"] == (1, "deadline", 0)
        assert ended["harder"] == (2, "final", 60 - 32)
        assert ended["skips"] == (1, "deadline", 0)
