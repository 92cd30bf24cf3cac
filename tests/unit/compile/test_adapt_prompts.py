"""Prompts: what each way computes, what must not matter to a row, and that training helps while the body stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from arlo.catalog.schedule import multiplications  # noqa: E402
from arlo.compile.adapt.merge import pool_merged  # noqa: E402
from arlo.compile.adapt.prompts import WAYS, Way, prompted_body, prompted_work, train_prompts  # noqa: E402
from arlo.compile.adapt.variant import Head  # noqa: E402
from arlo.compile.cache import Hasher  # noqa: E402
from arlo.compile.options import CompileOptions  # noqa: E402
from arlo.compile.steps.resolve import resolve  # noqa: E402
from tests.fakes.small_bert import body, rows  # noqa: E402


def values(count: int) -> Any:
    """[tasks, layers, count, width], of two tasks."""
    return torch.nn.Parameter(torch.randn(2, 3, count, 16, generator=torch.Generator().manual_seed(2)))


@pytest.mark.parametrize("way", WAYS)
def test_none_is_the_body(way: Way) -> None:
    model = body()
    ids, mask = rows([9, 16], 16)
    with torch.inference_mode():
        hidden, size = prompted_body(model, values(0), way)(ids, mask)
        wanted = model(input_ids=ids, attention_mask=mask).last_hidden_state  # type: ignore[operator]
    assert torch.equal(size, mask.float())
    assert (hidden - wanted)[mask.bool()].abs().max() < 1e-5


@pytest.mark.parametrize("way", WAYS)
def test_rows(way: Way) -> None:
    """Padding and the order of rows change nothing; prompts do, each way another answer."""
    model = body()
    prompted = prompted_body(model, values(3), way)
    ids, mask = rows([9, 16, 3], 16)
    order = torch.tensor([2, 0, 1])
    with torch.inference_mode():
        hidden, size = prompted(ids, mask)
        answer = pool_merged(hidden, size, ("mean", "cls"), normalize=False)
        again = pool_merged(*prompted(ids + (1 - mask) * 7, mask), ("mean", "cls"), normalize=False)
        moved = pool_merged(*prompted(ids[order], mask[order]), ("mean", "cls"), normalize=False)
        plain = pool_merged(*prompted_body(model, values(0), way)(ids, mask), ("mean", "cls"), normalize=False)
    assert hidden.shape[1] == 16
    assert size.sum(1).tolist() == [9, 16, 3]
    assert (again - answer).abs().max() < 1e-5
    assert (moved - answer[order]).abs().max() < 1e-5
    assert (answer - plain).abs().max() > 1e-3


@pytest.mark.parametrize("way", WAYS)
def test_rows_of_other_tasks(way: Way) -> None:
    """In one batch each row reads the prompts of its own task: other prompts of another task change it in nothing."""
    model = body()
    ids, mask = rows([9, 16, 3, 12], 20)
    task = torch.tensor([[0], [1], [1], [0]])
    mine, changed = values(3), values(3)
    with torch.inference_mode():
        changed[1] += 1.0
        before = prompted_body(model, mine, way)(ids, mask, None, task)[0]
        after = prompted_body(model, changed, way)(ids, mask, None, task)[0]
        alone = prompted_body(model, mine, way)(ids[[0]], mask[[0]], None, task[[0]])[0]
    of_first = task[:, 0] == 0
    assert torch.equal(after[of_first], before[of_first])
    assert (after - before)[~of_first].abs().amax((1, 2)).min() > 1e-3
    assert (before[0, :9] - alone[0, :9]).abs().max() < 1e-5


def test_the_work_of_the_ways() -> None:
    work = {way: prompted_work(128, 6, 8, way, width=384) for way in WAYS}
    plain = multiplications(128, 6, 0, width=384)
    assert plain < work["prefix"] < work["accumulate"] == multiplications(128, 6, 8, width=384)
    assert all(prompted_work(128, 6, 0, way, width=384) == plain for way in WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_training_helps(tiny: Path, tmp_path: Path, way: Way) -> None:
    """Of a head that knows nothing, loss falls; the body is as it was."""
    model = resolve(CompileOptions(source=tiny, out=tmp_path / "x", lengths=(24,), dynamic=False), Hasher())
    draws = np.random.default_rng(4)
    classes = np.arange(64) % 2
    given = [(1, *draws.integers(5 + 90 * kind, 95 + 90 * kind, 6).tolist(), 3) for kind in classes]
    head = Head(("a", "b"), np.zeros((2, 32), np.float32), np.zeros(2, np.float32))
    found = train_prompts(model, given, classes, head, count=2, way=way, epochs=12)
    again = train_prompts(model, given, classes, head, count=2, way=way, epochs=12)
    assert found.values.shape == (2, 2, 32)
    assert np.array_equal(found.values, again.values)  # by seed
    assert np.array_equal(found.head.weight, again.head.weight)
    assert _right(model, found, given, way) > 45 / 64


def _right(model: Any, found: Any, given: list[tuple[int, ...]], way: Way) -> float:
    from arlo.compile.adapt.measure import padded
    from arlo.compile.original import load_original

    original = load_original(model, attention="eager")
    inputs = {k: torch.from_numpy(v) for k, v in padded(model.inputs, given, 12).items()}
    with torch.inference_mode():
        prompted = prompted_body(original, torch.from_numpy(found.values[None]), way)
        hidden, size = prompted(inputs["input_ids"], inputs["attention_mask"], inputs.get("token_type_ids"))
        pooled = pool_merged(hidden, size, model.pooling, normalize=model.normalize).numpy()
    said = pooled @ found.head.weight.T + found.head.bias
    return float((said.argmax(1) == np.arange(len(given)) % 2).mean())
