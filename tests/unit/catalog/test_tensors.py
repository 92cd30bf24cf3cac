"""Inputs of a fixed size in a manifest: the length of their rows, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arlo.catalog.logical import write_logical_model
from arlo.catalog.manifest import Adaptation, InputTensor, Manifest, OutputTensor, Runtime
from arlo.catalog.tensors import row_length, sample
from arlo.errors import ConfigError

PIXELS = InputTensor(name="pixels", datatype="FP32", role="tensor", dims=(3, 28, 42), length_rule="patches:14")
TASK = InputTensor(name="task", datatype="INT32", role="tensor", dims=(1,), vocabulary=3)
IDS = InputTensor(name="ids", datatype="INT64", role="ids")


def manifest_of(*inputs: InputTensor, length: int = 7) -> Manifest:
    runtime = Runtime(
        name="r", max_length=length, max_batch=4, dynamic=False, engine="onnxruntime", precision="fp32", device="",
        latency=(),
    )  # fmt: skip
    return Manifest(
        model="m",
        task="classification",
        source="s",
        tokenizer=None,
        inputs=inputs,
        outputs=(OutputTensor(name="logits", datatype="FP32", token_level=False, dims=(2,)),),
        runtimes=(runtime,),
        adaptation=Adaptation(kind="merge", per_layer=(1, 1)),
    )


def test_lengths_by_rule() -> None:
    assert row_length((PIXELS, TASK)) == 2 * 3 + 1
    assert row_length((dataclasses.replace(PIXELS, length_rule="constant"),)) == 1
    assert row_length((IDS, TASK)) is None  # rows have a length of their own
    for rule, message in (("patches:15", "no whole patches"), ("", "it is constant or patches:P"), ("patches:0", "is")):
        with pytest.raises(ValueError, match=message):
            row_length((dataclasses.replace(PIXELS, length_rule=rule),))


def test_samples_are_the_same_each_time() -> None:
    first, again = (sample(PIXELS, (1, 2)) for _ in range(2))
    assert first.shape == PIXELS.dims
    assert first.dtype == np.float32
    assert np.array_equal(first, again)
    assert not np.array_equal(first, sample(PIXELS, (1, 3)))
    assert {int(sample(TASK, (seed,))[0]) for seed in range(40)} == {0, 1, 2}


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    for inputs in ((PIXELS,), (IDS, TASK)):
        manifest = manifest_of(*inputs)
        manifest.save(tmp_path)
        assert Manifest.load(tmp_path) == manifest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["runtimes"][0].update(max_length=8), "runtime r is not of the one length of all rows, 7"),
        (lambda raw: raw["runtimes"][0].update(dynamic=True), "runtime r is not of the one length"),
        (lambda raw: raw["inputs"][0].update(dims=[3, 0]), "they are at most 7, each above 0"),
        (lambda raw: raw["inputs"][0].update(datatype="FP8"), "tensors are BOOL"),
        (lambda raw: raw["inputs"][0].update(datatype="BYTES"), "one element a row"),
        (lambda raw: raw["inputs"][0].update(dims=[1 << 20, 1 << 20]), "MiB a row"),
        (lambda raw: raw["inputs"][0].update(optional=True), "all inputs are optional"),
        (lambda raw: raw["inputs"][0].update(role="other", datatype="INT64"), "has dims or a length_rule"),
        (
            lambda raw: raw["adaptation"].update(kind="magic"),
            "kind 'magic'; known are none, merge, prompt, prefix",
        ),
    ],
)
def test_what_cannot_be_served(tmp_path: Path, change: Any, message: str) -> None:
    manifest_of(PIXELS).save(tmp_path)
    raw = json.loads((tmp_path / "arlo.json").read_text())
    change(raw)
    (tmp_path / "arlo.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=message):
        Manifest.load(tmp_path)


def test_the_backend_inside_triton_refuses_them(tmp_path: Path) -> None:
    for inputs in ((PIXELS,), (IDS, TASK)):
        with pytest.raises(ConfigError, match="takes token ids only"):
            write_logical_model(tmp_path, manifest_of(*inputs))
