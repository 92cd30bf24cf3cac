"""What the answers of a replay are worth: a cascade of two stages in this process, whose last stage is always right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tokenizers
from tritonclient.grpc import service_pb2

from arlo.cli import main
from arlo.client import ModelInfo, TensorInfo
from arlo.client.classification import OF_CASCADES
from tests.fakes.kserve_server import KServeServer

WORDS = ("[UNK]", "sun", "rain", "snow")
LABELS = ("clear", "wet", "white")  # of the word that a text begins with
WRONG = WORDS.index("snow")  # the first stage takes it for rain
TENSORS = (
    TensorInfo(name="logits", datatype="FP32", shape=(-1, 3)),
    TensorInfo(name="probabilities", datatype="FP32", shape=(-1, 3)),
    TensorInfo(name="cascade_stage", datatype="INT32", shape=(-1,)),
    TensorInfo(name="cascade_confidence", datatype="FP32", shape=(-1,)),
    TensorInfo(name="cascade_reason", datatype="INT32", shape=(-1,)),
)


def info(*, cascade: bool = True) -> ModelInfo:
    return ModelInfo(
        name="weather",
        inputs=(
            TensorInfo(name="input_ids", datatype="INT64", shape=(-1, -1)),
            TensorInfo(name="attention_mask", datatype="INT64", shape=(-1, -1)),
        ),
        outputs=TENSORS if cascade else TENSORS[:1],
        max_length=8,
        labels=LABELS,
    )


def answer(request: Any, context: Any) -> Any:
    last = request.parameters["cascade"].string_param == "last"
    ids = np.frombuffer(request.raw_input_contents[0], "<i8").reshape(tuple(request.inputs[0].shape))
    labels = ids[:, 0] - 1
    if not last:
        labels = np.where(ids[:, 0] == WRONG, LABELS.index("wet"), labels)
    logits = np.eye(len(LABELS), dtype="<f4")[labels]
    rows = len(ids)
    outputs = {
        "logits": logits,
        "probabilities": logits,
        "cascade_stage": np.full(rows, int(last), "<i4"),
        "cascade_confidence": np.ones(rows, "<f4"),
        "cascade_reason": np.zeros(rows, "<i4"),
    }
    response = service_pb2.ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for name in [output.name for output in request.outputs] or ["logits"]:
        kind = "FP32" if outputs[name].dtype == np.float32 else "INT32"
        response.outputs.add(name=name, datatype=kind, shape=outputs[name].shape)
        response.raw_output_contents.append(outputs[name].tobytes())
    return response


@pytest.fixture
def server() -> Iterator[KServeServer]:
    with KServeServer(info=info(), infer=answer) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer of a few words, and texts: half of sun, a quarter each of rain and snow; one has no label."""
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    lines: list[dict[str, Any]] = [
        {"text": "sun", "label": "clear"},
        {"text": "rain rain", "label": 1},
        {"text": "sun sun sun", "label": "clear"},
        {"text": "snow " * 20, "label": "white"},  # cut to what the model takes
    ]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def replayed(server: KServeServer, folder: Path, *more: str) -> int:
    given = ("--labels", str(folder / "texts.jsonl"), "--tokenizer", str(folder), "--warmup", "0", "--slo-ms", "5000")
    (folder / "trace.csv").write_text("arrived_at_s,length\n" + "".join(f"{i / 100},5\n" for i in range(40)))
    return main(["replay", str(folder / "trace.csv"), "--target", server.endpoint, *given, *more])


def test_accuracy_and_agreement(server: KServeServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert replayed(server, folder, "--compare", "last", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    quality = told["summary"]["quality"]
    assert (quality["answers"], quality["labelled"]) == (40, 40)
    assert (quality["accuracy"], quality["agreement"]) == (0.75, 0.75)
    assert 0.5 < quality["accuracy_low"] < 0.75 < quality["accuracy_high"] < 0.95
    assert told["trace"]["length_max"] == 8
    assert server.calls["ModelInfer"] == 41  # the texts once more, together


def test_texts_without_labels_and_trace_that_names_texts(
    server: KServeServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (folder / "texts.jsonl").open("a") as file:
        file.write('\n{"text": "rain"}')
    (folder / "named.csv").write_text("arrived_at_s,length,text_id\n0.0,1,3\n0.01,1,4\n0.02,1,8\n0.03,1,1\n")
    given = ("--labels", str(folder / "texts.jsonl"), "--tokenizer", str(folder), "--slo-ms", "5000")
    assert main(["replay", str(folder / "named.csv"), "--target", server.endpoint, *given]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "accuracy 33.33% of 3 answers" in shown  # snow twice (8 is 3 of 5), rain once
    assert "last stage" not in shown


def test_failed_requests_are_not_judged(server: KServeServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.failures.extend([(grpc.StatusCode.INTERNAL, "no")] * 10)
    assert replayed(server, folder, "--json") == 1
    assert json.loads(capsys.readouterr().out)["summary"]["quality"]["answers"] == 30


def test_mistakes_say_what_to_do(server: KServeServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def says(code: int) -> str:
        assert code == 2
        return capsys.readouterr().err

    assert "--compare needs --labels" in says(main(["replay", "poisson", "--compare", "last"]))
    texts = str(folder / "texts.jsonl")
    assert "--labels needs --tokenizer" in says(main(["replay", "poisson", "--labels", texts]))
    assert "do not go with --labels" in says(main(["replay", "poisson", "--labels", texts, "--lengths", "fixed:3"]))
    server.info = info(cascade=False)
    before = server.calls["ModelInfer"]
    assert "goes with a cascade, and model weather is none" in says(replayed(server, folder, "--compare", "last"))
    assert server.calls["ModelInfer"] == before  # said before anything is sent
    (folder / "texts.jsonl").write_text('{"text": "sun", "label": "fog"}')
    assert "text 1: the label 'fog' is none of model weather's: clear, wet, white" in says(replayed(server, folder))
    (folder / "texts.jsonl").write_text('{"text": "sun", "text_pair": "rain"}')
    assert "text 1 is a pair" in says(replayed(server, folder))


def test_the_outputs_are_those_of_cascades() -> None:
    assert {tensor.name for tensor in TENSORS}.issuperset(OF_CASCADES)
