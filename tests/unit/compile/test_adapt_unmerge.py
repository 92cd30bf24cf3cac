"""Answers of single tokens from a body that merges them: every token is answered as what it was merged into."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from arlo.compile.adapt.merge import Step, merging_body, spread  # noqa: E402
from tests.fakes.small_bert import body, rows  # noqa: E402


def test_places_by_hand() -> None:
    """Of CLS, t1 ... t4 the second goes into the first, and what is left is CLS, t4, t1, t3."""
    step = Step(torch.tensor([[1]]), torch.tensor([[0]]))
    assert step.places(5).tolist() == [[0, 2, 2, 3, 1]]
    assert Step(torch.tensor([[2, 0]]), torch.tensor([[0, 1]])).places(6).tolist() == [[2, 1, 0, 2, 1, 3]]


@pytest.mark.parametrize("schedule", [(0, 0, 0), (1, 1, 1), (4, 3, 2), (5, 0, 3)])
def test_as_many_tokens_are_at_a_place_as_it_stands_for(schedule: tuple[int, ...]) -> None:
    ids, mask = rows([20, 13, 7, 2], 20)
    merging: Any = merging_body(body(), schedule)
    with torch.inference_mode():
        hidden, size = merging(ids, mask)
        again, places = merging.unmerged(ids, mask)
    assert torch.equal(hidden, again)
    assert places.shape == ids.shape
    assert places.max() < hidden.shape[1]
    for row, at in enumerate(places):
        real = np.bincount(at[mask[row].bool()].numpy(), minlength=hidden.shape[1])
        assert real.tolist() == size[row].tolist()
    assert torch.equal(places[:, 0], torch.zeros_like(places[:, 0]))  # the first token stays where it is


def test_a_short_row_keeps_its_answers() -> None:
    """It loses padding only, so each token says what it says without merging."""
    model = body()
    ids, mask = rows([10, 16], 16)
    with torch.inference_mode():
        hidden, places = merging_body(model, (1, 1, 1)).unmerged(ids, mask)
        wanted = model(input_ids=ids, attention_mask=mask).last_hidden_state  # type: ignore[operator]
    said = spread(hidden, places)
    assert said.shape == wanted.shape
    assert (said - wanted)[0, :10].abs().max() < 1e-5
    assert (said - wanted)[1].abs().max() > 1e-5
