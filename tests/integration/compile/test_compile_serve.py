"""A model compiled here, served by the real Triton, compared with sentence-transformers."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from arlo.compile import CompileOptions, compile_model
from arlo.compile.quiet import known_noise_silenced
from arlo.compile.texts import Texts
from arlo.workers import LocalPool
from tests.fakes.tiny_model import VOCABULARY, write_tiny

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

MAX_BATCH = 4


class Served:
    """The model on one worker, and the original in this process."""

    def __init__(self, source: Path, repository: Path, client: Any) -> None:
        self.client = client
        self.sent: Counter[str] = Counter()  # rows, by model
        self.texts = Texts(repository / "tokenizer.json")
        with known_noise_silenced():
            from sentence_transformers import SentenceTransformer

            self._original = SentenceTransformer(str(source), device="cpu")

    def original(self, ids: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        import torch

        row = torch.tensor([ids])
        with torch.inference_mode():
            answer = self._original({"input_ids": row, "attention_mask": torch.ones_like(row)})
        return {
            "sentence_embedding": answer["sentence_embedding"][0].numpy(),
            "last_hidden_state": answer["token_embeddings"][0].numpy(),
        }

    async def infer(
        self, model: str, rows: Sequence[Sequence[int]], width: int, outputs: Sequence[str] = ()
    ) -> dict[str, NDArray[Any]]:
        ids = np.zeros((len(rows), width), np.int64)
        mask = np.zeros_like(ids)
        for index, row in enumerate(rows):
            ids[index, : len(row)], mask[index, : len(row)] = row, 1
        inputs = []
        for name, array in (("input_ids", ids), ("attention_mask", mask)):
            tensor = triton.InferInput(name, array.shape, "INT64")
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        wanted = [triton.InferRequestedOutput(name) for name in outputs] or None
        result = await self.client.infer(model, inputs, outputs=wanted)
        self.sent[model] += len(rows)
        return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}

    async def executed(self, model: str) -> tuple[int, int]:
        """Rows that Triton had the model compute so far, and the executions that it took.

        Triton counts after it has answered, rows before executions: waits until all rows are counted and nothing moves.
        """
        seen = (-1, -1)
        async with asyncio.timeout(10):
            while True:
                (found,) = (await self.client.get_inference_statistics(model)).model_stats
                last, seen = seen, (found.inference_count, found.execution_count)
                if seen == last and seen[0] >= self.sent[model]:
                    return seen
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    folder = tmp_path_factory.mktemp("compile")
    source = write_tiny(folder / "tiny", pooling={"pooling_mode_mean_tokens": True})
    options = CompileOptions(
        source=source, out=folder / "out", lengths=(16, 32), dynamic=True, max_batch=MAX_BATCH, cache=folder / "cache"
    )
    manifest = compile_model(options)
    # The same model where Triton forms batches, as `[dispatch] batching = "worker"` wants it.
    joined = dataclasses.replace(options, out=folder / "joined", name="joined", dynamic=False, batcher=True)
    compile_model(joined)
    shutil.copytree(joined.out / "joined_len16", options.out / "joined_len16")
    async with LocalPool(options.out, workers=1, run_dir=folder / "run", threads=1, metrics=False) as pool:
        for runtime in manifest.runtimes:
            await pool.load("w0", runtime.name)
        await pool.load("w0", "joined_len16")
        client = triton.InferenceServerClient((await pool.workers())[0].endpoint)
        yield Served(source, options.out, client)
        await client.close()


async def test_only_what_is_asked_for_comes_back(served: Served) -> None:
    got = await served.infer("tiny_len16", [served.texts.ids(8)], 16, outputs=["sentence_embedding"])
    assert list(got) == ["sentence_embedding"]


@pytest.mark.parametrize("model", ["tiny_len16", "tiny_len32", "tiny_dynamic"])
@pytest.mark.parametrize("count", range(1, MAX_BATCH + 1))
async def test_padded_rows_of_one_request_are_one_execution_and_answered_as_the_original_does(
    served: Served, model: str, count: int
) -> None:
    width = 32 if model == "tiny_len32" else 16
    rows = [served.texts.ids(length, sample=length) for length in (3, 16, 7, 12)[:count]]
    before = await served.executed(model)
    got = await served.infer(model, rows, width)
    after = await served.executed(model)
    assert (after[0] - before[0], after[1] - before[1]) == (count, 1)
    assert got["last_hidden_state"].shape[:2] == (count, width)
    for index, row in enumerate(rows):
        expected = served.original(row)
        np.testing.assert_allclose(got["sentence_embedding"][index], expected["sentence_embedding"], atol=1e-5)
        np.testing.assert_allclose(
            got["last_hidden_state"][index, : len(row)], expected["last_hidden_state"], atol=1e-5
        )


@pytest.mark.parametrize(("model", "joins"), [("tiny_len16", False), ("joined_len16", True)])
async def test_triton_joins_requests_only_where_the_build_asked_for_it(served: Served, model: str, joins: bool) -> None:
    config = (await served.client.get_model_config(model)).config
    assert (config.max_batch_size, config.HasField("dynamic_batching")) == (MAX_BATCH, joins)
    rows = [served.texts.ids(length, sample=length) for length in (3, 7, 12, 16)]
    before = await served.executed(model)
    singles = await asyncio.gather(*(served.infer(model, [row], 16) for row in rows * 16))
    after = await served.executed(model)
    assert after[0] - before[0] == 64
    assert (after[1] - before[1] < 64) == joins
    expected = [served.original(row)["sentence_embedding"] for row in rows]
    for index, single in enumerate(singles):
        np.testing.assert_allclose(single["sentence_embedding"][0], expected[index % 4], atol=1e-5)


@pytest.mark.parametrize("model", ["tiny_len16", "joined_len16"])
async def test_a_bad_request_fails_alone(served: Served, model: str) -> None:
    good = served.texts.ids(16)
    answers = await asyncio.gather(
        *(served.infer(model, [row], 16) for row in [good, [VOCABULARY + 1] * 16] * 6), return_exceptions=True
    )
    expected = served.original(good)["sentence_embedding"]
    for answer in answers[::2]:
        assert isinstance(answer, dict)
        np.testing.assert_allclose(answer["sentence_embedding"][0], expected, atol=1e-5)
    for answer in answers[1::2]:
        assert isinstance(answer, InferenceServerException)
        assert answer.status() == "StatusCode.INVALID_ARGUMENT"
        assert "out of data bounds" in str(answer)


async def test_triton_itself_refuses_another_length(served: Served) -> None:
    with pytest.raises(InferenceServerException, match="unexpected shape"):
        await served.infer("tiny_len16", [served.texts.ids(8)], 17)
