"""Four real workers for all gateway tests, and one gateway per module in front of them.

A gateway built with sanitizers has stand-ins behind it: see tools/sanitized_gateway.sh.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pytest_asyncio import is_async_test
from tokenizers import Tokenizer, decoders

from arlo.catalog.manifest import LatencyPoint, OutputTensor
from arlo.workers import LocalPool
from arlo.workers.emulated.repository import EmulatedRuntime, write_emulated_repository, write_runtimes
from tests.fakes.gateway import SANITIZED, Gateway, gateway_of
from tests.fakes.small_workers import small_workers
from tests.fakes.tiny_model import write_tokenizer
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.api_models import api_of_models
from tests.integration.gateway.replayed import STAGES, recorded, write_stages

LENGTHS = (64, 128, 256, 512)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder / "tokenizer.json"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def workers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Workers]:
    path = tmp_path_factory.mktemp("repository")

    def write(model: str, **options: Any) -> Any:
        return write_emulated_repository(path, model=model, **options)

    manifests = {
        # Answers quickly; its answers can be checked.
        "emu": write("emu", max_lengths=LENGTHS, latency_ms=(1, 1, 2, 3)),
        # Takes a while: what waits and what runs can be told apart.
        "slow": write("slow", max_lengths=(64, 128), latency_ms=(250, 250)),
        "slower": write("slower", max_lengths=(64,), latency_ms=(1000,)),
        "dyn": write("dyn", max_lengths=LENGTHS, latency_ms=(1, 1, 2, 3), dynamic=True),
        # Batches: the gateway's, Triton's own; and Triton's own queue, which is full at once.
        "batched": write("batched", max_lengths=(64,), latency_ms=(30,), max_batch=8, batch_growth=0.0),
        "joined": write("joined", max_lengths=(64,), latency_ms=(30,), max_batch=8, batch_growth=0.0, batcher=True),
        "tight": write("tight", max_lengths=(64,), latency_ms=(200,)),
        # One at a time as `slow`, but with Triton's batcher and a queue policy: what waits in Triton can be dropped.
        "queued": write("queued", max_lengths=(64,), latency_ms=(250,)),
        "wide": write("wide", max_lengths=(512,), latency_ms=(0,), token_dims=384),
    }
    manifests |= write_stages(path)
    # A reranker: its one logit is the sum of the ids.
    manifests["ranker"] = write_runtimes(
        path,
        model="ranker",
        runtimes=[
            EmulatedRuntime(
                name="ranker_len64",
                max_length=64,
                max_batch=8,
                dynamic=False,
                latency=(LatencyPoint(length=64, batch=1, latency_us=1000),),
            )
        ],
        outputs=(OutputTensor(name="logits", datatype="FP32", token_level=False, dims=(1,)),),
    )
    if SANITIZED:
        async with small_workers(manifests, {stage: recorded(stage) for stage in STAGES}) as small:
            yield small
        return
    # Configurations as others may have written them.
    for model, size in (("tight", 1), ("queued", 64)):
        with (path / f"{model}_len64" / "config.pbtxt").open("a") as config:
            config.write(f"dynamic_batching {{ default_queue_policy {{ max_queue_size: {size} }} }}\n")
    run_dir = tmp_path_factory.mktemp("workers")
    async with LocalPool(path, workers=4, run_dir=run_dir, metrics=False, backoff_first_s=0.05) as pool:
        workers = Workers(pool, manifests)
        await workers.start()
        yield workers
        await workers.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """One gateway for the module: a worker for each level of `emu`."""
    deployment = workers.deployment("emu", [(0, 64), (1, 128), (2, 256), (3, 512)])
    async with gateway_of(tmp_path_factory.mktemp("gateway"), deployment) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def served(workers: Workers, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """The gateway of api_models.py, for all that ask the HTTP API and change nothing."""
    async with api_of_models(workers, tokenizer, tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def http(served: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the HTTP API of the module's `served`."""
    async with httpx.AsyncClient(base_url=f"http://{served.api}", timeout=20) as client:
        yield client


@pytest.fixture(scope="session")
def known(tokenizer: Path) -> Tokenizer:
    """What the gateway's tokenizer is compared with."""
    known = Tokenizer.from_file(str(tokenizer))
    known.no_truncation()
    known.no_padding()
    known.decoder = decoders.WordPiece()
    return known


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Gateway]]:
    """start(deployment, **configuration): a gateway of the test's own, as an async context manager."""
    return lambda deployment=None, **changes: gateway_of(tmp_path, deployment, **changes)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All asynchronous tests of this folder share the event loop that watches the workers."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
