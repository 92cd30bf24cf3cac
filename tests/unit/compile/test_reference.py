"""The reference step: which texts, what the original answers, and that a warm build needs no torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from arlo.catalog.manifest import InputTensor, OutputTensor
from arlo.compile import CompileOptions
from arlo.compile.cache import Cache, Hasher
from arlo.compile.steps.reference import plan_rows, reference_step
from arlo.compile.steps.resolve import SourceModel, resolve
from arlo.compile.texts import Texts
from arlo.compile.verify.answers import FILE_NAME, Answered, Row, kept_positions, load, pad, save
from arlo.errors import CompileError, ConfigError
from tests.fakes.tiny_model import DIM
from tests.unit.compile.conftest import FirstBuild

OUTPUTS = (
    OutputTensor(name="sentence_embedding", datatype="FP32", token_level=False, dims=(DIM,)),
    OutputTensor(name="last_hidden_state", datatype="FP32", token_level=True, dims=(DIM,)),
)
LOGITS = (OutputTensor(name="logits", datatype="FP32", token_level=False, dims=(1,)),)


@pytest.fixture
def model(first_build: FirstBuild) -> SourceModel:
    return resolve(first_build.options, Hasher())


@pytest.mark.parametrize("lengths", [(0, 16), (64, 128), (448, 512), (0, 512)])
def test_the_rows_of_a_length(model: SourceModel, lengths: tuple[int, int]) -> None:
    below, length = lengths
    plan = plan_rows(model, OUTPUTS, below, length)
    assert [tokens for tokens, _, _ in plan[:4]] == [length, max(3, below + 1), length // 2, 3]
    assert all(below < tokens <= length for tokens, _, _ in plan[4:] if tokens > 3)
    assert 16 <= len(plan) <= 128
    assert len(plan) * length <= max(8192, 16 * length)
    assert sum(tokens == length for tokens, _, _ in plan) >= len(plan) // 4
    assert len({sample for _, _, sample in plan}) == len(plan)
    assert 0 < sum(paired for _, paired, _ in plan) <= len(plan) // 4


def test_labels_take_many_rows_and_rerankers_pairs(model: SourceModel) -> None:
    classifier = dataclasses.replace(model, task="sequence-classification")
    assert len(plan_rows(classifier, LOGITS, 0, 64)) == 1000
    assert len(plan_rows(classifier, LOGITS, 0, 512)) == 128
    assert len(plan_rows(classifier, LOGITS, 64, 128)) == 64
    reranker = dataclasses.replace(model, task="reranker", inputs=model.inputs[:2])
    assert all(paired for _, paired, _ in plan_rows(reranker, LOGITS, 0, 64))
    large = dataclasses.replace(model, weight_bytes=1 << 30)
    assert len(plan_rows(large, OUTPUTS, 448, 512)) == 8


def test_pairs_are_encoded_as_the_tokenizer_does(first_build: FirstBuild) -> None:
    texts = Texts(first_build.options.out / "tokenizer.json")
    for tokens in (8, 17, 32, 48):
        ids, types = texts.pair(tokens, sample=tokens)
        assert len(ids) == len(types) == tokens
        first = types.index(1)
        assert types == [0] * first + [1] * (tokens - first)
        assert 0 < first <= tokens // 2
    assert texts.pair(5) == (texts.ids(5), [0] * 5)  # no room for two
    assert texts.ids(12, sample=3) == Texts(first_build.options.out / "tokenizer.json").ids(12, sample=3)
    assert Texts(None).pair(9) == (Texts(None).ids(9), [0] * 9)


def test_an_onnx_file_answers_for_itself(first_build: FirstBuild, model: SourceModel, tmp_path: Path) -> None:
    """By ONNX Runtime: the same texts and, here, the same answers as by torch."""
    options = first_build.options
    texts = Texts(options.out / "tokenizer.json")
    graph = options.out / "tiny_dynamic" / "1" / "model.onnx"
    cache = Cache(tmp_path, Hasher())
    entry = reference_step(cache, dataclasses.replace(model, onnx=graph), OUTPUTS, texts, (16, 32))
    by_onnx = load(entry.folder / FILE_NAME, OUTPUTS)
    by_torch = load(options.out / FILE_NAME, OUTPUTS)
    assert len(by_onnx) == len(by_torch) == entry.meta["rows"]
    for left, right in zip(by_onnx, by_torch, strict=True):
        assert (left.row, left.level, left.deep) == (right.row, right.level, right.deep)
        assert left.answers.keys() == right.answers.keys()
        assert ("last_hidden_state" in left.answers) is left.deep
        for name, values in left.answers.items():
            np.testing.assert_allclose(values, right.answers[name], atol=1e-5)
    other = (dataclasses.replace(OUTPUTS[0], name="other"),)
    with pytest.raises(CompileError, match="the original model does not give other"):
        reference_step(cache, dataclasses.replace(model, onnx=graph), other, texts, (16,))


def test_another_length_computes_only_its_own(tiny_options: CompileOptions, model: SourceModel) -> None:
    cache = Cache(tiny_options.cache_root, Hasher())
    before = set((tiny_options.cache_root / "compile" / "answers").iterdir())
    texts = Texts(next((tiny_options.cache_root / "compile" / "tokenizer").glob("*/tokenizer.json")))
    assert reference_step(cache, model, OUTPUTS, texts, (16, 32)).cached
    assert not reference_step(cache, model, OUTPUTS, texts, (16, 32, 40)).cached
    assert len(set((tiny_options.cache_root / "compile" / "answers").iterdir()) - before) == 1


def test_a_warm_build_needs_no_torch(tiny_options: CompileOptions) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom arlo.compile import CompileOptions, compile_model\n"
        "source, out, cache = map(Path, sys.argv[1:])\n"
        "compile_model(CompileOptions(source=source, out=out, cache=cache, lengths=(16, 32), dynamic=True))\n"
        "print(sorted({'torch', 'transformers', 'onnxscript'} & sys.modules.keys()))\n"
    )
    assert tiny_options.cache is not None
    command = [
        sys.executable,
        "-P",
        "-c",
        code,
        str(tiny_options.source),
        str(tiny_options.out),
        str(tiny_options.cache),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_a_reference_file_that_is_not_whole_is_refused(first_build: FirstBuild, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is missing: it holds the answers"):
        load(tmp_path / FILE_NAME, OUTPUTS)
    (tmp_path / FILE_NAME).write_bytes((first_build.options.out / FILE_NAME).read_bytes()[:-100])
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / FILE_NAME, OUTPUTS)


def test_files_are_the_same_each_time(tmp_path: Path) -> None:
    rows = [
        Answered(
            Row((1, 5, 2), (0, 0, 1)), 8, True,
            {"sentence_embedding": np.ones(DIM, np.float32), "last_hidden_state": np.ones((3, DIM), np.float32)},
            {"last_hidden_state": kept_positions(3)},
        ),
        Answered(Row((1, 2), (0, 0)), 8, False, {"sentence_embedding": np.zeros(DIM, np.float32)}, {}),
    ]  # fmt: skip
    for name in ("one", "two"):
        save(tmp_path / name, rows, OUTPUTS)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    again = load(tmp_path / "one", OUTPUTS)
    assert [row.row for row in again] == [row.row for row in rows]
    np.testing.assert_array_equal(again[0].answers["last_hidden_state"], 1)
    assert "last_hidden_state" not in again[1].answers
    assert kept_positions(512).tolist()[:: len(kept_positions(512)) - 1] == [0, 511]


def test_padding_as_the_gateway_pads() -> None:
    inputs = (
        InputTensor(name="input_ids", datatype="INT32", role="ids", pad_value=1),
        InputTensor(name="attention_mask", datatype="INT64", role="mask"),
        InputTensor(name="token_type_ids", datatype="INT64", role="other"),
    )
    tensors = pad(inputs, [Row((7, 8), (0, 1))], 4)
    assert {name: array.tolist() for name, array in tensors.items()} == {
        "input_ids": [[7, 8, 1, 1]],
        "attention_mask": [[1, 1, 0, 0]],
        "token_type_ids": [[0, 1, 0, 0]],
    }
    assert tensors["input_ids"].dtype == np.int32
    assert pad(inputs, [Row((7, 8), (0, 1))], 4, filling=(5, 6, 9))["input_ids"].tolist() == [[7, 8, 9, 5]]
