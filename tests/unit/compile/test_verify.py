"""Verification: what it measures, and that it finds what is wrong with a runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from arlo.catalog.manifest import Manifest, OutputTensor
from arlo.catalog.tasks import NO_CLASS
from arlo.compile.engines.interface import EngineSettings, Runner, get_engine
from arlo.compile.spec import RuntimeSpec
from arlo.compile.steps.verify import Subject, rows_for, verify
from arlo.compile.verify.answers import FILE_NAME, Answered, Row, load
from arlo.compile.verify.compare import AMONG_OTHERS, IDS_UNDER_MASK, Comparison, refusals
from arlo.errors import CompileError
from tests.unit.compile.conftest import FirstBuild

Tensors = dict[str, NDArray[np.generic]]
LOGITS = OutputTensor(name="logits", datatype="FP32", token_level=False, dims=(3,))
TOKEN_LOGITS = OutputTensor(name="logits", datatype="FP32", token_level=True, dims=(3,))
SCORE = OutputTensor(name="logits", datatype="FP32", token_level=False, dims=(1,))


class Changed:
    """A real engine whose inputs or answers are changed on the way."""

    def __init__(
        self,
        runner: Runner,
        inputs: Callable[[Tensors], Tensors] = lambda tensors: tensors,
        answers: Callable[[Tensors], Tensors] = lambda tensors: tensors,
    ) -> None:
        self._runner, self._inputs, self._answers = runner, inputs, answers

    def run(self, inputs: Mapping[str, NDArray[np.int64]], outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        return self._answers(dict(self._runner.run(self._inputs(dict(inputs)), outputs)))  # type: ignore[arg-type, return-value]


def opened(repository: Path, name: str, max_batch: int = 1) -> tuple[Subject, list[Answered]]:
    manifest = Manifest.load(repository)
    runtime = next(runtime for runtime in manifest.runtimes if runtime.name == name)
    shape = "dynamic" if runtime.dynamic else "static"
    spec = RuntimeSpec(name=name, max_length=runtime.max_length, max_batch=max_batch, shape=shape)
    runner = get_engine("onnxruntime", EngineSettings()).open(repository / name / "1", spec, threads=1)
    subject = Subject(
        runner=runner,
        spec=spec,
        task=manifest.task,
        precision="fp32",
        inputs=manifest.inputs,
        outputs=manifest.outputs,
    )
    return subject, rows_for(load(repository / FILE_NAME, manifest.outputs), spec)


def refused(subject: Subject, rows: Sequence[Answered], runner: Runner) -> str:
    with pytest.raises(CompileError) as caught:
        verify(dataclasses.replace(subject, runner=runner), rows, ran_on="cpu", engine_ran=True)
    return str(caught.value)


def test_an_exact_runtime_passes(first_build: FirstBuild) -> None:
    """Also in batches, which mix lengths and need not be full."""
    for name, max_batch in (("tiny_len16", 1), ("tiny_len32", 1), ("tiny_dynamic", 1), ("tiny_dynamic", 5)):
        subject, rows = opened(first_build.options.out, name, max_batch)
        found = verify(subject, rows, ran_on="cpu: here", engine_ran=True)
        assert found.rows == len(rows)
        assert 0 < found.max_abs_diff < 1e-5
        assert found.padding_diff < 1e-5
        assert found.cosine is not None
        assert found.cosine > 0.999999
        assert (found.agreement, found.ran_on, found.engine_ran) == (None, "cpu: here", True)


def test_rows_of_a_runtime(first_build: FirstBuild) -> None:
    for name, lengths in (("tiny_len16", {3, 8, 16}), ("tiny_len32", {3, 16, 17, 32}), ("tiny_dynamic", {3, 17, 32})):
        subject, rows = opened(first_build.options.out, name)
        assert lengths <= {len(row.row) for row in rows}
        assert all(len(row.row) <= subject.spec.max_length for row in rows)
    assert {type_ for row in rows for type_ in row.row.types} == {0, 1}
    with pytest.raises(CompileError, match=r"length 24: reference\.npz has no texts"):
        rows_for(rows, RuntimeSpec(name="x", max_length=24, max_batch=1, shape="static"))


@pytest.mark.parametrize("name", ["tiny_len32", "tiny_dynamic"])
def test_a_mask_that_is_ignored_is_found(first_build: FirstBuild, name: str) -> None:
    subject, rows = opened(first_build.options.out, name)

    def all_real(tensors: Tensors) -> Tensors:
        return tensors | {"attention_mask": np.ones_like(tensors["attention_mask"])}

    message = refused(subject, rows, Changed(subject.runner, all_real))
    assert f"verify: {subject.spec.title} differs from the original model" in message
    assert "padding changes the answer by" in message
    assert "does not mask its padding" in message


def test_what_lies_under_the_mask_alone_is_found(first_build: FirstBuild) -> None:
    """An engine that is exact with the padding id, and looks at other ids there."""
    subject, rows = opened(first_build.options.out, "tiny_len32")

    def leaks(tensors: Tensors) -> Tensors:
        mask = tensors["attention_mask"]
        unusual = (mask == 0) & (tensors["input_ids"] != subject.inputs[0].pad_value)
        return tensors | {"attention_mask": np.where(unusual, 1, mask)}

    message = refused(subject, rows, Changed(subject.runner, leaks))
    assert IDS_UNDER_MASK in message
    assert "it differs by" not in message


def test_numbers_that_are_none_are_refused(first_build: FirstBuild) -> None:
    subject, rows = opened(first_build.options.out, "tiny_len16")

    def last_is_none(tensors: Tensors) -> Tensors:
        changed = {name: array.copy() for name, array in tensors.items()}
        changed["last_hidden_state"][0, 0, 0] = np.nan
        return changed

    message = refused(subject, rows, Changed(subject.runner, answers=last_is_none))
    assert "length 16 differs from the original model: it differs by nan" in message
    assert "last_hidden_state" in message


def test_a_turned_embedding_is_refused_whatever_the_tolerance(first_build: FirstBuild) -> None:
    subject, rows = opened(first_build.options.out, "tiny_len16")

    def turned(tensors: Tensors) -> Tensors:
        return tensors | {"sentence_embedding": tensors["sentence_embedding"][:, ::-1]}

    loose = dataclasses.replace(subject, tolerance=10.0)
    message = refused(loose, rows, Changed(subject.runner, answers=turned))
    assert "the cosine is" in message
    assert "it differs by" not in message


def answered(values: Sequence[Sequence[float]], *, tokens: bool = False) -> list[Answered]:
    """Rows with these logits; tokens: one row whose tokens have them."""
    arrays = np.array(values, np.float32)
    rows = [arrays] if tokens else list(arrays)
    ids = tuple(range(len(arrays))) if tokens else (1, 2)
    return [Answered(Row(ids, (0,) * len(ids)), 8, False, {"logits": row}, {}) for row in rows]


def compared(
    output: OutputTensor,
    expected: Sequence[Sequence[float]],
    got: Sequence[Sequence[float]],
    precision: str = "fp16",
    *,
    tolerance: float | None = 1e9,
    flips: bool = False,
) -> tuple[Comparison, list[str]]:
    """What was found, and why it is refused."""
    rows = answered(expected, tokens=output.token_level)
    comparison = Comparison("classifier", [output], rows, precision, tolerance=tolerance, flips=flips)
    for index, row in enumerate(answered(got, tokens=output.token_level)):
        comparison.answer(index, row.answers)
    return comparison, refusals(comparison.finish(), comparison.bounds)


@pytest.mark.parametrize("output", [LOGITS, TOKEN_LOGITS])
def test_labels_that_flip_count_unless_the_original_is_undecided(output: OutputTensor) -> None:
    expected = [[10.0, 0, 0], [5.0, 4.97, 0], [0, 0, 3.0], [0, 1.0, 0.5]]
    flipped = [[9.0, 0, 0], [4.9, 4.97, 0], [0, 0, 3.0], [0, 1.0, 0.5]]
    comparison, missed = compared(output, expected, flipped)  # 0.03 of 10 is less than 4e-3 of it
    assert (comparison.found.agreement, comparison.found.tied, missed) == (0.75, 0.25, [])
    comparison, missed = compared(output, expected, flipped, "fp32")
    assert (comparison.found.agreement, comparison.found.tied) == (0.75, 0.0)
    assert "75.0000% of the labels agree, less than 1" in missed[0]
    _, missed = compared(output, expected, [*flipped[:3], [0, 0.5, 1.0]])
    assert "labels agree, less than 0.999" in missed[0]
    assert ("row 0 (4 tokens)" if output.token_level else "row 3 (2 tokens)") in missed[0]


def test_the_order_of_scores_counts() -> None:
    expected = [[-4.0], [0.0], [0.01], [3.0]]
    comparison, missed = compared(SCORE, expected, [[-3.9], [0.02], [0.01], [3.1]])
    assert (comparison.found.compared, comparison.found.same, comparison.found.ties, missed) == (6, 5, 1, [])
    comparison, missed = compared(SCORE, expected, [[-4.0], [0.0], [0.01], [-0.5]])
    assert comparison.found.same == 4
    assert "66.6667% of the labels agree, less than 0.999, first in rows 1 and 3" in missed[0]


@pytest.mark.parametrize(("share", "exact"), [(0.019, True), (0.021, False)])
def test_half_precision_is_bounded_by_the_size_of_the_output(share: float, exact: bool) -> None:
    for scale in (0.1, 100.0):
        expected = [[scale, 0, 0], [0, scale, 0]]
        got = (np.array(expected) + share * scale).tolist()
        assert (compared(LOGITS, expected, got, tolerance=None)[1] == []) is exact
    # What is no class of a task bounds nothing: a number that is larger than all logits pads rows of fewer classes.
    expected = [[1.0, 0, NO_CLASS], [0, 0.5, 1.0]]
    got = [[1.0 + share, 0, NO_CLASS], expected[1]]
    assert (compared(LOGITS, expected, got, tolerance=None)[1] == []) is exact


def test_rows_by_another_merge_are_counted_apart() -> None:
    """Of a model that merges tokens some rows may differ by more than rounding; too many are refused."""
    expected = [[float(i), 0, 1] for i in range(40)]
    for flipped, why in ((2, []), (3, ["7.5% of the rows are answered by another merge, more than 5%"])):
        got = [[row[0], 3, row[2]] if i < flipped else row for i, row in enumerate(expected)]
        comparison, missed = compared(LOGITS, expected, got, "fp32", tolerance=None, flips=True)
        found = comparison.found
        assert (found.flipped, found.difference.value, found.agreement) == (flipped, 0.0, 1.0)
        assert [text[: len(wanted)] for text, wanted in zip(missed, why, strict=True)] == why
        assert compared(LOGITS, expected, got, "fp32", tolerance=None)[1] != []


def test_a_near_tie_of_a_merging_model_is_another_merge() -> None:
    """Its label may be another one where no number differs by more than the bound."""
    expected = [[1.0, 0.0, 0.5 + 1e-5 * i] for i in range(999)] + [[1.0, 1.0 - 5e-5, 0.0]]
    got = [*expected[:-1], [1.0 - 4e-5, 1.0, 0.0]]
    for flips in (False, True):
        comparison, missed = compared(LOGITS, expected, got, "fp32", tolerance=None, flips=flips)
        assert (missed == []) is flips
        assert comparison.found.flipped == int(flips)


def test_among_other_rows_a_merging_model_may_merge_otherwise() -> None:
    rows = answered([[1.0, 0.0, 0.5]] * 40)
    for flips, what, exact in ((False, AMONG_OTHERS, False), (True, AMONG_OTHERS, True), (True, IDS_UNDER_MASK, False)):
        comparison = Comparison("classifier", [LOGITS], rows, "fp32", tolerance=None, flips=flips)
        for index, row in enumerate(rows):
            comparison.answer(index, row.answers)
        other = {LOGITS.name: rows[3].answers[LOGITS.name] + np.float32(0.2)}
        comparison.padding(3, what, other, rows[3].answers)
        found = comparison.finish()
        assert (refusals(found, comparison.bounds) == []) is exact
        assert found.flipped == int(flips and exact)
