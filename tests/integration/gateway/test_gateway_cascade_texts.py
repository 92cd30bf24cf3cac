"""A cascade whose last stage has another vocabulary: texts go on in that one's tokens, and token ids are refused."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from collections.abc import Sequence
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from tritonclient.grpc import service_pb2

from tests.fakes.triton_workers import Workers
from tests.integration.gateway.replayed import (
    BATCHES,
    CLS,
    RECORDS,
    STAGES,
    Plan,
    arrays_of,
    cascade_deployment,
    parameters_of,
    recorded,
    request_of,
    softmax,
)

pytestmark = pytest.mark.integration

EVERYWHERE = {"small": (0, 1), "middle": (2,), "large": (2, 3)}
OTHER = 500  # a record's name in the last stage's vocabulary is so much further on
NAMED = [i for i in range(RECORDS) if CLS not in (i, (i + OTHER) % RECORDS)]


def tokenizer(shift: int, words: dict[str, int], model: Any = models.WordPiece) -> bytes:
    """`r7` is record 7's name, and an id that lies `shift` further on."""
    vocabulary = {f"r{i}": (i + shift) % RECORDS for i in NAMED}
    vocabulary |= {"[CLS]": CLS, "[UNK]": 1500, **words}
    made = Tokenizer(model(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", CLS)])
    return str(made.to_str()).encode()


# A word of one token in the first stages, and of two in the last one.
FIRST, LAST = tokenizer(0, {"long": 2000}), tokenizer(OTHER, {"lo": 2001, "##ng": 2002})


def mixed(workers: Workers, placement: Any = EVERYWHERE, plans: Any = None, **fields: Any) -> Any:
    deployment = cascade_deployment(workers, placement, plans, **fields)
    for model in (deployment.model, *deployment.more_models):
        model.tokenizer = LAST if model.name == "large" else FIRST
    deployment.cascades[0].stages[2].tokenizer_group = 1
    return deployment


def texts_of(records: Sequence[int], words: int = 4) -> list[str]:
    return [" ".join([f"r{record}", *["long"] * words]) for record in records]


def request_of_texts(texts: Sequence[str], outputs: Sequence[str] = (), **parameters: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name="kinds")
    request.inputs.add(name="text", datatype="BYTES", shape=[len(texts), 1])
    packed = [text.encode() for text in texts]
    request.raw_input_contents.append(b"".join(struct.pack("<I", len(text)) + text for text in packed))
    for name in outputs or ("logits", "cascade_stage", "cascade_reason", "cascade_confidence"):
        request.outputs.add(name=name)
    for key, value in parameters.items():
        setattr(request.parameters[key], {str: "string_param", bool: "bool_param"}[type(value)], value)
    return request


def said(stage: int, records: Sequence[int]) -> NDArray[np.float32]:
    """Logits of a stage: the last one reads another name."""
    shift = OTHER if stage == 2 else 0
    return recorded(STAGES[stage])[0][[(record + shift) % RECORDS for record in records]]


def stages_of(records: Sequence[int]) -> NDArray[np.int64]:
    """Where rows end by the thresholds 0.7 and 0.6."""
    sure = [softmax(said(stage, records)).max(-1) for stage in (0, 1)]
    return np.where(sure[0] >= 0.7, 0, np.where(sure[1] >= 0.6, 1, 2))


def check(outputs: dict[str, NDArray[Any]], records: Sequence[int]) -> None:
    ends = stages_of(records)
    assert outputs["cascade_stage"].tolist() == ends.tolist()
    for i, (record, end) in enumerate(zip(records, ends, strict=True)):
        np.testing.assert_array_equal(outputs["logits"][i], said(int(end), [record])[0])


async def ask(gateway: Any, records: Sequence[int], words: int = 4, **how: Any) -> Any:
    return await gateway.infer(request_of_texts(texts_of(records, words), **how), timeout=60)


async def test_rows_go_on_in_the_words_of_their_stage(workers: Workers, start: Any) -> None:
    random = np.random.default_rng(1)
    async with start(mixed(workers), dispatch=BATCHES) as gateway:

        async def client() -> None:
            for _ in range(10):
                records = random.choice(NAMED, random.integers(1, 33)).tolist()
                check(arrays_of(await ask(gateway, records, int(random.integers(0, 31)))), records)

        await asyncio.gather(*(client() for _ in range(4)))
        # 22 tokens for the first stages, 42 for the last one, whose runtimes take 32 and 64.
        far = [record for record, end in zip(NAMED, stages_of(NAMED), strict=True) if end == 2][:1]
        answer = await ask(gateway, far, 20)
        said_of_it = parameters_of(answer)
        assert (said_of_it["tokens"], said_of_it["computed_tokens"], said_of_it["pruned_tokens"]) == (22, 64, 0)
        check(arrays_of(await ask(gateway, far, cascade="last")), far)


@pytest.mark.parametrize("elsewhere", [("small", "middle"), ("large",), tuple(STAGES)], ids=["first", "last", "all"])
async def test_tokenizers_of_helper_processes(workers: Workers, start: Any, elsewhere: Sequence[str]) -> None:
    """A vocabulary after the other is asked for, of short requests and of long ones, over gRPC and HTTP."""
    deployment = mixed(workers)
    for model in (deployment.model, *deployment.more_models):
        if model.name in elsewhere:
            shift = OTHER if model.name == "large" else 0
            model.tokenizer = tokenizer(shift, {"long": 2000}, models.WordLevel)
    helpers = {"text_helpers": 2, "text_command": [sys.executable, "-P", "-m", "arlo.front.helper"]}
    random = np.random.default_rng(2)
    async with start(deployment, dispatch=BATCHES, **helpers) as gateway:

        async def client() -> None:
            for words in (4, 500) * 4:  # the longer ones have above 64 KiB, and are read beside the lane
                records = random.choice(NAMED, 32).tolist()
                check(arrays_of(await ask(gateway, records, words, truncate="END")), records)

        async def hasty() -> None:
            for words in (4, 500) * 8:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    request = request_of_texts(texts_of(NAMED[:32], words), truncate="END")
                    await gateway.infer(request, timeout=random.uniform(0.001, 0.02))

        patient = {"x-request-timeout-ms": "60000"}  # the helpers start with the first text
        async with httpx.AsyncClient(base_url=f"http://{gateway.api}", timeout=60, headers=patient) as http:

            async def page() -> None:
                for words in (4, 500) * 4:
                    records = random.choice(NAMED, 32).tolist()
                    inputs = [[text] for text in texts_of(records, words)]
                    answer = await http.post("/predict", json={"inputs": inputs, "truncate": "END"})
                    assert answer.status_code == 200, answer.text
                    ends = stages_of(records).tolist()
                    assert [row[0]["label"] for row in answer.json()] == [
                        f"label{said(end, [record])[0].argmax()}" for record, end in zip(records, ends, strict=True)
                    ]

            await asyncio.gather(client(), client(), hasty(), hasty(), page(), page())


@pytest.mark.sanitized
async def test_words_are_left_out_of_other_tokens(workers: Workers, start: Any) -> None:
    """By what they mean to the stage before, and counted as the next stage has them: its runtimes take 32 and 64."""
    plans = {"prunes": Plan(((1.0001, 1.0001),), alpha=0.7)}
    deployment = mixed(workers, plans=plans)
    starts = np.packbits(np.arange(2003) != 2002, bitorder="little").tobytes()
    deployment.cascades[0].words[0].word_start = starts
    deployment.cascades[0].words.add(word_start=starts, special=[CLS])
    record = NAMED[:1]
    async with start(deployment, dispatch=BATCHES) as gateway:

        async def pruned(text: str) -> int:
            answer = await gateway.infer(request_of_texts([text]), timeout=60)
            outputs, parameters = arrays_of(answer), parameters_of(answer)
            assert int(outputs["cascade_stage"][0]) == 2
            np.testing.assert_array_equal(outputs["logits"][0], said(2, record)[0])
            assert parameters["computed_tokens"] == 32
            return int(parameters["pruned_tokens"])

        # 22 tokens for the first stages, 42 in the last one.
        assert await pruned(texts_of(record, 20)[0]) == 10
        # A word that the last one does not know is a word.
        assert await pruned(texts_of(record, 20)[0].replace("long", "no", 1)) in (9, 10)
        # 34 tokens, two of which the second stage does not get; what they are of 54 does not come back in the last one.
        text = " ".join([*texts_of(record, 20), *(f"r{other}" for other in NAMED[10:22])])
        assert await pruned(text) in (2 + 54 - 2 - 32, 2 + 54 - 3 - 32, 2 + 54 - 4 - 32)
        stats = await gateway.stats("kinds")
        assert stats.stages[1].pruned_tokens == 2
        # As long as the last stage's runtimes: perhaps it was cut, after other words than in the first one.
        answer = await gateway.infer(request_of_texts(texts_of(record, 31)), timeout=60)
        assert parameters_of(answer)["computed_tokens"] == 64


async def test_token_ids_are_refused(workers: Workers, start: Any) -> None:
    async with start(mixed(workers), dispatch=BATCHES) as gateway:
        metadata = await gateway.stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="kinds"))
        assert [(tensor.name, tensor.datatype) for tensor in metadata.inputs] == [
            ("text", "BYTES"),
            ("text_pair", "BYTES"),
        ]
        for request, says in (
            (request_of([1, 2]), "has stages of different vocabularies: send the input 'text'"),
            # It fits the first stages, and not the last one.
            (request_of_texts(texts_of([1], 40)), "row 0: the text has more than the 64 tokens that model 'large'"),
            (request_of_texts(texts_of([1], 70)), "row 0: the text has more than the 64 tokens that model 'kinds'"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await gateway.infer(request, timeout=60)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert says in str(refused.value.details())
        check(arrays_of(await ask(gateway, NAMED[:32], 70, truncate="END")), NAMED[:32])
        assert (await gateway.stats("kinds")).outcomes.rejected == 3


async def test_shadows_are_in_the_words_of_the_last_stage(workers: Workers, start: Any) -> None:
    own = {"shadow_share": 1.0, "shadow_max_busy": 1.0, "drift_epsilon": 0.9}
    plans = {"usual": Plan(), "ahead": Plan(((1.0001, 1.0001),))}
    async with start(mixed(workers, {"small": (0, 1), "middle": (), "large": (2, 3)}, plans, **own)) as gateway:
        for record in NAMED[:200]:
            answer = arrays_of(await ask(gateway, [record], 10))
            stage = int(answer["cascade_stage"][0])
            np.testing.assert_array_equal(answer["logits"][0], said(stage, [record])[0])
        await gateway.stats_when(lambda s: s.in_flight == s.queued == 0, "shadows are over", model="large")
        stats = await gateway.stats("kinds")
        assert stats.shadows.rows > 0
        assert stats.shadows.failed == 0
        last = {said(2, [record])[0].tobytes(): record for record in NAMED[:200]}
        rows = (await gateway.call("GetSample", model="kinds")).rows
        assert len(rows) > 50
        for row in rows:
            record = last[np.array(row.said[-1].logits, np.float32).tobytes()]
            np.testing.assert_array_equal(row.said[0].logits, said(0, [record])[0])


async def test_stages_without_a_tokenizer_are_refused(workers: Workers, start: Any) -> None:
    deployment = mixed(workers)
    next(model for model in deployment.more_models if model.name == "large").tokenizer = b""
    async with start() as gateway:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await gateway.call("Apply", deployment=deployment)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "stage 'large' takes none: it was compiled without a tokenizer" in str(refused.value.details())


async def test_http_answers_say_stage_and_degraded(workers: Workers, start: Any) -> None:
    """On every path that asks a cascade, whatever the form of its body."""
    records = NAMED[:16]
    texts = texts_of(records)
    bodies: dict[str, dict[str, Any]] = {
        "/predict": {"inputs": [[text] for text in texts]},
        "/classify": {"input": texts},
        "/": {"inputs": [[text] for text in texts]},
        "/vertex": {"instances": [{"inputs": text} for text in texts]},
    }
    async with start(dispatch=BATCHES) as gateway:
        await gateway.call("Apply", deployment=mixed(workers, {"small": (0, 1), "middle": (), "large": ()}))
        await gateway.stats_when(lambda stats: all(i.state == 2 for i in stats.instances), "active", model="small")
        degraded = int((stages_of(records) > 0).sum())
        assert 0 < degraded < len(records)
        async with httpx.AsyncClient(base_url=f"http://{gateway.api}", timeout=20) as client:
            for path, body in bodies.items():
                answer = await client.post(path, json={"model": "kinds", **body})
                assert answer.status_code == 200, answer.text
                said = [answer.headers[f"x-arlo-{name}"] for name in ("stage", "escalated", "degraded")]
                assert said == ["0", "0", str(degraded)], path
            await gateway.apply(mixed(workers, version=2))
            for path, body in bodies.items():
                answer = await client.post(path, json={"model": "kinds", **body})
                assert answer.headers["x-arlo-stage"] == str(stages_of(records).max()), path
                assert answer.headers["x-arlo-degraded"] == "0"
