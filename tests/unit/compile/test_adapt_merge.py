"""Merging tokens: by hand, and what it promises of padding, sizes and rows."""

from __future__ import annotations

import pytest

from arlo.catalog.schedule import (
    clamped,
    merge_schedule,
    merged_multiplications,
    multiplications,
    tokens_after,
    usual_merges,
)

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from arlo.compile.adapt.merge import merge_tokens, merging_body, pool_merged  # noqa: E402
from tests.fakes.small_bert import body, rows  # noqa: E402


def test_by_hand() -> None:
    """CLS and keys e1, e1, e2, e2: the second token goes into the first; the tie of the fourth is lost by position."""
    first, second = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    keys = torch.stack([torch.tensor([1.0, 1.0]), first, first, second, second])[None]
    hidden = torch.arange(5.0).reshape(1, 5, 1)
    kept = torch.tensor([[1.0, 0, 0, 0, 0]])
    found, size, left, step = merge_tokens(hidden, keys, torch.ones(1, 5), kept, 1)
    assert step.source.tolist() == [[1]]  # of the even positions: token 2
    assert step.target.tolist() == [[0]]  # of the odd ones: token 1
    assert size.tolist() == [[1, 1, 2, 1]]
    assert found.flatten().tolist() == [0, 4, 1.5, 3]
    assert left.tolist() == [[1, 0, 0, 0]]


def test_nothing_merged_is_the_model() -> None:
    """With no merge the answer is that of transformers."""
    model = body()
    ids, mask = rows([16, 10, 3], 16)
    with torch.inference_mode():
        hidden, size = merging_body(model, (0, 0, 0))(ids, mask)
        wanted = model(input_ids=ids, attention_mask=mask).last_hidden_state  # type: ignore[operator]
    assert torch.equal(size, mask.float())
    assert (hidden - wanted)[mask.bool()].abs().max() < 1e-6


def test_padding_goes_first() -> None:
    """A row of 10 in 16 loses padding only, and its answer is as without merging; a full row changes."""
    model = body()
    ids, mask = rows([10, 16], 16)
    with torch.inference_mode():
        plain = pool_merged(*merging_body(model, (0, 0, 0))(ids, mask), ("mean", "cls"), normalize=True)
        merging = merging_body(model, (1, 1, 1))
        hidden, size = merging(ids, mask)
        merged = pool_merged(hidden, size, ("mean", "cls"), normalize=True)
    assert hidden.shape[1] == 13
    assert (merged[0] - plain[0]).abs().max() < 1e-5
    assert (merged[1] - plain[1]).abs().max() > 1e-5


def test_sizes_and_rows() -> None:
    """Sizes add up to the real tokens; other ids under the mask and another order of rows change nothing."""
    merging = merging_body(body(), (4, 3, 2))
    ids, mask = rows([20, 13, 7, 2], 20)
    other = ids + (1 - mask) * 7
    order = torch.tensor([2, 0, 3, 1])
    with torch.inference_mode():
        hidden, size = merging(ids, mask)
        answer = pool_merged(hidden, size, ("mean",), normalize=False)
        again = pool_merged(*merging(other, mask), ("mean",), normalize=False)
        moved = pool_merged(*merging(ids[order], mask[order]), ("mean",), normalize=False)
    assert hidden.shape[1] == 20 - 9
    assert size.sum(1).tolist() == mask.sum(1).tolist()
    assert (again - answer).abs().max() < 1e-5
    assert (moved - answer[order]).abs().max() < 1e-5


def test_schedules() -> None:
    """Token counts of ViT-B/16, and its multiply-adds in thousand millions."""
    assert tokens_after(197, 12, -15) == list(range(182, 16, -15))
    assert tokens_after(197, 12, -16)[-3:] == [37, 21, 11]
    assert tokens_after(197, 12, -20) == [177, 157, 137, 117, 97, 77, 57, 37, 19, 10, 6, 4]
    assert tokens_after(197, 12, -25) == [172, 147, 122, 97, 72, 47, 24, 13, 7, 4, 3, 2]
    assert tokens_after(197, 12, 8) == list(range(205, 294, 8))
    wanted = {0: 17.45, -5: 14.65, -10: 11.89, -15: 9.17, -20: 7.02, -25: 5.67, 2: 18.65, 4: 19.86, 8: 22.31, 32: 37.65}
    assert {n: round(multiplications(197, 12, n, width=768) / 1e9, 2) for n in wanted} == wanted
    assert not clamped(197, 12, 15)
    assert clamped(197, 12, 16)
    assert [max(n for n in range(64) if not clamped(length, 12, n)) for length in (64, 128, 256, 512)] == [4, 9, 19, 39]
    assert merged_multiplications(197, merge_schedule(197, 12, 15), width=768) == multiplications(
        197, 12, -15, width=768
    )


@pytest.mark.parametrize(
    ("tokens", "layers", "merges"),
    [
        (128, 6, [0, 5, 11, 16]),
        (64, 12, [0, 1, 3, 4]),
        (512, 12, [0, 12, 24, 35]),
        (197, 12, [0, 5, 9, 14]),
        (8, 6, [0]),
    ],
)
def test_the_usual_merges_leave_every_layer_enough(tokens: int, layers: int, merges: list[int]) -> None:
    assert usual_merges(tokens, layers, protected=2) == merges
    for merge, share in zip(merges, (0, 0.15, 0.3, 0.45), strict=False):
        removed = sum(tokens - left for left in tokens_after(tokens, layers, -merge, protected=2)) / (tokens * layers)
        assert removed == pytest.approx(share, abs=(layers + 1) / (4 * tokens) + 1e-9)
