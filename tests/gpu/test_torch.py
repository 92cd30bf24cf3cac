"""The torch engine on a GPU: every kind against float64 on ragged rows, and what is recorded. Needs torch alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arlo.templates.torch.encoder import Architecture, random_encoder
from arlo.templates.torch.session import Session

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

SMALL = Architecture(
    family="bert",
    layers=3,
    width=128,
    heads=2,
    intermediate=256,
    vocabulary=500,
    positions=128,
    types=2,
    pooling=("mean", "cls"),
    seed=5,
)
FAMILIES = {
    "bert": SMALL,
    "roberta": dataclasses.replace(SMALL, family="roberta", position_offset=2, pad=1, types=1),
    "modernbert": dataclasses.replace(
        SMALL,
        family="modernbert",
        rotary=(160000.0, 10000.0, 10000.0),
        windows=(0, 16, 16),
        pre_norm=True,
        gated=True,
        bias=False,
        norm_bias=False,
        learned_positions=False,
        types=0,
    ),
    "mpnet": dataclasses.replace(SMALL, family="mpnet", relative=True, position_offset=2, pad=1, types=0),
    "tokens": dataclasses.replace(SMALL, head=("linear:128:5",), outputs=("logits",), pooling=()),
}
BOUNDS = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1.5e-2}


def ragged(rows: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and mask of rows of 1 to 128 tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 129, rows)
    lengths[0] = 128
    mask = (np.arange(128) < lengths[:, None]).astype(np.int64)
    return rng.integers(3, 500, (rows, 128)) * mask, mask


def exact(arch: Architecture, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Each row alone in float64 on the CPU."""
    model = random_encoder(arch, seed=5, device="cuda").double().cpu()
    model._tables.clear()
    found: dict[str, list[np.ndarray]] = {}
    with torch.inference_mode():
        for row, real in zip(ids, mask, strict=True):
            tokens = torch.from_numpy(row[: real.sum()])[None]
            for name, answer in model.answers_padded(model.padded(tokens, None), None).items():
                found.setdefault(name, []).append(answer[0].numpy())
    return {name: np.concatenate([np.atleast_2d(row) for row in rows]) for name, rows in found.items()}


def far(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["static", "dynamic", "packed"])
def test_equals_float64(tmp_path: Path, family: str, kind: str, precision: str) -> None:
    arch = FAMILIES[family]
    dataclasses.replace(arch, precision=precision).write(tmp_path)
    compiled = precision == "fp16" and kind != "dynamic"
    session = Session(
        tmp_path, device="cuda", kinds=(kind,), lengths=(64, 128), max_rows=12, budget=1024, compiled=compiled
    )
    assert not session.note
    for seed, rows in enumerate((12, 1, 9)):
        ids, mask = ragged(rows, seed=seed)
        wanted = exact(arch, ids, mask)
        answers = session.run(session.outputs, {"input_ids": ids, "attention_mask": mask})
        assert session.kind == kind
        for name, got in zip(session.outputs, answers, strict=True):
            real = got[mask.astype(bool)] if arch.by_token(name) else got
            assert far(real, wanted[name]) < BOUNDS[precision], name


def test_static_and_packed_replay_graphs(tmp_path: Path) -> None:
    dataclasses.replace(SMALL, precision="fp16").write(tmp_path)
    session = Session(tmp_path, device="cuda", kinds=("static", "packed"), lengths=(64, 128), max_rows=12, budget=512)
    kinds = {kind for kind, _, _ in session.graphs}
    assert kinds == {"static", "packed"}
    assert {rows for kind, rows, _ in session.graphs if kind == "static"} == {*range(1, 9), 12}


def test_an_id_outside_the_vocabulary_leaves_the_gpu_alive(tmp_path: Path) -> None:
    dataclasses.replace(SMALL, precision="fp16").write(tmp_path)
    session = Session(tmp_path, device="cuda", kinds=("packed",), budget=512)
    with pytest.raises(ValueError, match="outside 0 to 499"):
        session.run(("sentence_embedding",), {"input_ids": np.array([[7, 500]])})
    (answer,) = session.run(("sentence_embedding",), {"input_ids": np.array([[7, 8]])})
    assert np.isfinite(answer).all()


def test_graphs_do_not_keep_rows_of_the_run_before(tmp_path: Path) -> None:
    dataclasses.replace(SMALL, precision="fp16").write(tmp_path)
    session: Any = Session(tmp_path, device="cuda", kinds=("packed",), budget=1024)
    ids, mask = ragged(8, seed=3)
    (alone,) = session.run(("sentence_embedding",), {"input_ids": ids[1:2], "attention_mask": mask[1:2]})
    session.run(("sentence_embedding",), {"input_ids": ids, "attention_mask": mask})
    (again,) = session.run(("sentence_embedding",), {"input_ids": ids[1:2], "attention_mask": mask[1:2]})
    np.testing.assert_array_equal(alone, again)
