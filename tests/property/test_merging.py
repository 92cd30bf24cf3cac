"""Merging tokens, whatever the lengths and the schedule: what each row keeps, and what must not matter to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from arlo.catalog.schedule import merge_schedule  # noqa: E402
from arlo.compile.adapt.merge import merging_body, pool_merged, spread  # noqa: E402
from tests.fakes.small_bert import body, rows  # noqa: E402

MODEL = body()
LAYERS = 3


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], int, int, int]:
    """Lengths of rows, the width that they are padded to, tokens a layer merges, and a seed."""
    width = draw(st.integers(6, 40))
    lengths = draw(st.lists(st.integers(2, width), min_size=1, max_size=5))
    return lengths, width, draw(st.integers(0, 12)), draw(st.integers(0, 1000))


@given(cases())
@settings(max_examples=30, deadline=None)
def test_rows(case: tuple[list[int], int, int, int]) -> None:
    lengths, width, merge, seed = case
    schedule = merge_schedule(width, LAYERS, merge, protected=2)
    merging: Any = merging_body(MODEL, schedule)
    ids, mask = rows(lengths, width)
    generator = torch.Generator().manual_seed(seed)
    other = ids + (1 - mask) * torch.randint(1, 50, ids.shape, generator=generator)
    order = torch.randperm(len(lengths), generator=generator)
    with torch.inference_mode():
        hidden, size = merging(ids, mask)
        answer = pool_merged(hidden, size, ("mean", "cls"), normalize=False)
        again = pool_merged(*merging(other % 50, mask), ("mean", "cls"), normalize=False)
        moved = pool_merged(*merging(ids[order], mask[order]), ("mean", "cls"), normalize=False)
        left, places = merging.unmerged(ids, mask)
        plain = MODEL(input_ids=ids, attention_mask=mask).last_hidden_state  # type: ignore[operator]
    assert hidden.shape[1] == width - sum(schedule)
    assert size.sum(1).tolist() == lengths
    assert (again - answer).abs().max() < 1e-5
    assert (moved - answer[order]).abs().max() < 1e-5
    said = spread(left, places)
    for row, length in enumerate(lengths):
        if merge == 0 or width - length >= 2 * (sum(schedule) + 1):  # padding is enough for all that goes
            assert (said - plain)[row, :length].abs().max() < 1e-5
