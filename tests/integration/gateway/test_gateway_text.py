"""Text in place of token ids: answered exactly as the ids that the `tokenizers` package makes of it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
from tokenizers import Tokenizer, models, pre_tokenizers
from tritonclient.grpc import service_pb2

from tests.fakes.gateway import Gateway, gateway_of
from tests.fakes.triton_workers import Workers
from tests.integration.gateway.examples import Example, of_text, outputs_of, request_of

pytestmark = pytest.mark.integration

ODD = [
    "",
    " ",
    "naïve Café",
    "日本語 text",
    "a\x00b\tc\nd",
    "[CLS] in text [SEP]",
    "e\u0301",
    "x" * 300,
    "🙂 ok?!",
    "ﬁne ß",
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def texts(workers: Workers, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    deployment = workers.deployment("emu", [(0, 64), (1, 128), (2, 256), (3, 512)])
    deployment.model.tokenizer = tokenizer.read_bytes()
    deployment.model.prompts.add(name="search_query", text="find: ")
    deployment.model.prompts.add(name="topic", text="topic of ")
    async with gateway_of(tmp_path_factory.mktemp("gateway"), deployment) as gateway:
        yield gateway


async def refused(gateway: Gateway, request: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await gateway.stub.ModelInfer(request, timeout=10)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, caught.value
    return str(caught.value.details())


@pytest.mark.parametrize("typed", [False, True])
async def test_text_is_answered_as_its_ids(texts: Gateway, known: Tokenizer, typed: bool) -> None:
    rows = [*ODD, "a longer text of some more words than the others have", "word " * 100]
    pairs = [*reversed(rows)]
    for second in ((), pairs):
        given = list(zip(rows, pairs, strict=True)) if second else rows
        ids = tuple(np.array(each.ids, np.int64) for each in known.encode_batch(given))
        sent = Example(ids, max(map(len, ids)))
        answer = await texts.stub.ModelInfer(of_text(rows, second, typed=typed), timeout=20)
        wanted = await texts.stub.ModelInfer(request_of(sent), timeout=20)
        assert answer.parameters["tokens"].int64_param == sum(map(len, ids))
        for name, value in outputs_of(wanted).items():
            np.testing.assert_array_equal(outputs_of(answer)[name], value)


async def test_long_text_is_refused_or_cut(texts: Gateway, tokenizer: Path) -> None:
    known = Tokenizer.from_file(str(tokenizer))
    known.no_padding()
    long = " ".join(f"word{number}" for number in range(2000))
    assert "row 1: the text has more than the 512 tokens" in await refused(texts, of_text(["short", long]))
    for truncate, side in (("END", "right"), ("START", "left")):
        known.enable_truncation(512, direction=side)
        ids = np.array(known.encode(long).ids, np.int64)
        answer = await texts.stub.ModelInfer(of_text([long], truncate=truncate), timeout=20)
        wanted = await texts.stub.ModelInfer(request_of(Example((ids,), 512)), timeout=20)
        np.testing.assert_array_equal(outputs_of(answer)["embedding"], outputs_of(wanted)["embedding"])


async def test_what_is_wrong_is_named(texts: Gateway, gateway: Gateway) -> None:
    assert "compiled without a tokenizer" in await refused(gateway, of_text(["a"]))
    assert "row 1: the text is not UTF-8" in await refused(texts, of_text(["a", b"\xff\xfe"]))
    assert "parameter truncate must be" in await refused(texts, of_text(["a"], truncate="yes"))
    assert "1 rows; 2 are needed" in await refused(texts, of_text(["a", "b"], ["c"]))
    cut = of_text(["abc"])
    cut.raw_input_contents[0] = cut.raw_input_contents[0][:-1]
    assert "text 0 is cut short" in await refused(texts, cut)
    both = of_text(["a"])
    both.inputs.add(name="input_ids", datatype="INT64", shape=[1, 1])
    both.raw_input_contents.append(bytes(8))
    assert "beside text" in await refused(texts, both)


async def test_metadata_lists_text_where_it_is_taken(texts: Gateway, gateway: Gateway) -> None:
    request = service_pb2.ModelMetadataRequest(name="emu")
    names = [each.name for each in (await texts.stub.ModelMetadata(request)).inputs]
    assert names[-2:] == ["text", "text_pair"]
    assert "text" not in [each.name for each in (await gateway.stub.ModelMetadata(request)).inputs]
    config = await texts.stub.ModelConfig(service_pb2.ModelConfigRequest(name="emu"))
    assert {each.name for each in config.config.input if each.optional} >= {"text", "text_pair"}


async def test_prompts_go_before_texts(texts: Gateway) -> None:
    """As NVIDIA NIM's clients ask for them, and by name; a name goes before a type."""

    async def answer(rows: Sequence[str], **parameters: Any) -> Any:
        return outputs_of(await texts.stub.ModelInfer(of_text(rows, **parameters)))["embedding"].tolist()

    assert await answer(["a", "b c"], input_type="query") == await answer(["find: a", "find: b c"])
    assert await answer(["a"], input_type="search_query", prompt_name="topic") == await answer(["topic of a"])
    assert await answer(["a"], input_type="passage", prompt_name="") == await answer(["a"])  # there is none for it
    assert "no prompt 'none'; it has 'search_query', 'topic'" in await refused(
        texts, of_text(["a"], prompt_name="none")
    )
    assert "there is no 'question'; query, passage" in await refused(texts, of_text(["a"], input_type="question"))
    wrong = of_text(["a"])
    wrong.parameters["input_type"].int64_param = 1
    assert "parameter input_type must be a string_param" in await refused(texts, wrong)
    ids = request_of(Example(rows=(np.array([101, 5, 102]),), width=3))
    ids.parameters["input_type"].int64_param = 1
    await texts.stub.ModelInfer(ids)  # of token ids it is a parameter like any


async def test_prompts_before_texts_of_a_helper(workers: Workers, start: Any) -> None:
    """Short texts and long ones, whose requests are read until tokens are wanted, and again when they are there."""
    words = Tokenizer(models.WordLevel({"[UNK]": 1, "find:": 2, "a": 3, "b": 4, "c": 5}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    deployment = workers.deployment("emu", [(0, 64), (1, 128)])
    deployment.model.tokenizer = words.to_str().encode()
    deployment.model.prompts.add(name="search_query", text="find: ")
    helpers = {"text_helpers": 2, "text_command": [sys.executable, "-P", "-m", "arlo.front.helper"]}
    async with start(deployment, **helpers) as gateway:

        async def answer(rows: Sequence[str], **parameters: Any) -> Any:
            request = of_text(rows, truncate="END", **parameters)
            return outputs_of(await gateway.infer(request, timeout=60))["embedding"].tolist()

        async def client(seed: int) -> None:
            random = np.random.default_rng(seed)
            for most in (5, 3000) * 3:  # words; 32 rows of the most have above 64 KiB
                rows = [" ".join(random.choice(list("abc"), random.integers(1, most))) for _ in range(32)]
                wanted = await answer([f"find: {row}" for row in rows])
                assert await answer(rows, input_type="query") == wanted
                assert await answer(rows, input_type="passage") != wanted

        await asyncio.gather(*(client(seed) for seed in range(4)))
