"""The torch engine in the real Triton behind the gateway: 1,000 ragged rows in each kind, against float64."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from arlo.client import AsyncClient
from arlo.client.errors import ClientError
from arlo.compile import CompileOptions, compile_model
from arlo.compile.original import load_original
from arlo.compile.pooling import pool_numpy
from tests.fakes.serving import PORTS, serving
from tests.fakes.tiny_model import MAX_TOKENS, VOCABULARY, write_tiny

pytestmark = pytest.mark.integration

Exact = tuple[NDArray[Any], NDArray[Any]]  # of a row: its embedding, its hidden states

ROWS, TOGETHER = 1000, 25
BOUND = 1e-5
CONFIG = f"""\
[model]
repository = "repository"
slo_ms = 20000
[workers]
count = 1
{PORTS}"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("source") / "tiny", pooling={"pooling_mode_mean_tokens": True})


@pytest.fixture(scope="module")
def rows() -> list[NDArray[np.int64]]:
    rng = np.random.default_rng(11)
    return [rng.integers(5, VOCABULARY, length) for length in rng.integers(1, MAX_TOKENS + 1, ROWS)]


@pytest.fixture(scope="module")
def exact(source: Path, rows: list[NDArray[np.int64]]) -> list[Exact]:
    """The embedding and the hidden states of each row by itself, in float64."""
    from arlo.compile.cache import Hasher
    from arlo.compile.steps.resolve import resolve

    model = resolve(CompileOptions(source=source, out=source / "x", lengths=(MAX_TOKENS,)), Hasher())
    original, found = load_original(model).double(), []
    with torch.inference_mode():
        for row in rows:
            ids = torch.from_numpy(row)[None]
            hidden = original(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].numpy()
            found.append((pool_numpy(hidden, model.pooling, normalize=True), hidden))
    return found


@pytest.mark.parametrize("kind", ["static", "dynamic", "packed"])
@pytest.mark.asyncio
async def test_ragged_rows_through_triton_and_gateway(
    tmp_path: Path,
    source: Path,
    rows: list[NDArray[np.int64]],
    exact: list[tuple[NDArray[Any], NDArray[Any]]],
    kind: Any,
) -> None:
    options = CompileOptions(
        source=source,
        out=tmp_path / "repository",
        lengths=(16, 32, MAX_TOKENS),
        engine="torch",
        kinds=(kind,),
        max_batch=8,
        cache=source.parent / "cache",
    )
    compile_model(options)
    (tmp_path / "serve.toml").write_text(CONFIG)
    async with serving(tmp_path) as one, AsyncClient(one.ready["grpc"], model="tiny") as client:
        names = ("sentence_embedding", "last_hidden_state")
        gate = asyncio.Semaphore(TOGETHER)

        async def ask(index: int) -> float:
            async with gate:
                result = await client.infer(rows[index], outputs=names)
            wanted = exact[index]
            return max(float(np.abs(result[name] - wanted[at]).max()) for at, name in enumerate(names))

        worst = await asyncio.gather(*(ask(index) for index in range(ROWS)))
        assert max(worst) < BOUND
        with pytest.raises(ClientError, match=f"0 to {VOCABULARY - 1}"):
            await client.infer(np.array([5, VOCABULARY]))
