"""Both clients against the real gateway in front of real Triton workers (emulated engine), started by `arlo serve`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from arlo.client import DeadlineExceededError, NotFoundError, OverloadedError, Result, TooLongError
from arlo.workers.emulated.repository import write_emulated_repository
from tests.fakes.client_twins import KINDS, Twin
from tests.fakes.serving import served

pytestmark = pytest.mark.integration

CONFIG = """\
[model]
repository = "repository"
slo_ms = 1000
[deployment]
allocation = {16 = 1, 64 = 1}
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
[control]
http_address = "127.0.0.1:0"
reallocate = false
"""


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("serve")
    write_emulated_repository(folder / "repository", model="emu", max_lengths=(16, 64), latency_ms=(1, 40))
    (folder / "serve.toml").write_text(CONFIG)
    with served(folder) as ready:
        yield ready["grpc"]


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, endpoint: str) -> Iterator[Twin]:
    with Twin(request.param, endpoint) as twin:
        yield twin


def total(row: Any) -> float:
    return float(np.sum(row))


def test_what_the_gateway_says_of_the_model(client: Twin) -> None:
    info = client.model_info()
    assert (info.name, info.max_length) == ("emu", 64)
    assert info.sentence_output() == "embedding"
    assert [info.is_token_level(t) for t in info.outputs if t.name == "last_hidden_state"] == [True]
    assert client.ready()


def test_one_row_and_where_its_time_went(client: Twin) -> None:
    result = client.infer([5, 6, 7], request_id="mine")
    assert (result.id, result.model, result.lengths, result.attempts) == ("mine", "emu", (3,), 1)
    assert result["embedding"].tolist() == [18.0] * 4
    assert result["last_hidden_state"][:, 0].tolist() == [5.0, 6.0, 7.0]
    timing = result.timing
    assert (timing.level, timing.demoted, timing.computed_tokens, result.padded_tokens) == (0, 0, 16, 13)
    assert timing.execute_us is not None
    assert timing.total_us is not None
    assert 1000 <= timing.execute_us <= timing.total_us <= timing.elapsed_us
    assert client.infer(np.arange(1, 41)).timing.level == 1


def test_a_batch_is_split_and_each_row_pays_for_its_own_length(client: Twin) -> None:
    rows = [[1, 2], list(range(1, 41)), [9]]
    result = client.infer_batch(rows)
    assert result["embedding"][:, 0].tolist() == [total(row) for row in rows]
    assert [r[:, 0].tolist() for r in result.rows("last_hidden_state")] == rows
    assert result.timing.computed_tokens in (16 + 64 + 16, 16 + 64 + 64, 64 * 3)
    assert client.embed(rows, batch_rows=2)[:, 0].tolist() == [total(row) for row in rows]


def test_a_stream_of_mixed_lengths(client: Twin) -> None:
    rows = [list(range(1, 2 + n * 13 % 64)) for n in range(200)]
    items = list(client.stream(rows, window=16))
    assert [type(item) for item in items] == [Result] * len(rows)
    assert {item.id: item["embedding"][0] for item in items} == {str(n): total(row) for n, row in enumerate(rows)}
    assert [item.id for item in items] != [str(n) for n in range(len(rows))]  # short ones overtake long ones


def test_deadlines_that_cannot_be_met(client: Twin) -> None:
    """They take 40 ms. On a busy machine the client's own clock may come before the gateway's refusal."""
    client.model_info()
    refused = 0
    for _ in range(5):
        with pytest.raises((OverloadedError, DeadlineExceededError)) as error:
            client.infer(np.ones(64, np.int64), timeout_s=0.03)
        refused += error.type is OverloadedError
    assert refused
    items = list(client.stream([np.ones(64, np.int64)] * 3, timeout_s=0.03))
    assert {item.request_id for item in items} == {"0", "1", "2"}
    assert {type(item) for item in items} <= {OverloadedError, DeadlineExceededError}
    assert client.infer([1])["embedding"][0] == 1.0


def test_refusals(client: Twin, endpoint: str) -> None:
    with pytest.raises(TooLongError, match="65 tokens, the longest allowed is 64"):
        client.infer([1] * 65)
    assert client.infer([1] * 65, truncate=True).lengths == (64,)
    with Twin("sync", endpoint, model="other") as other:
        with pytest.raises(NotFoundError):
            other.infer([1])
