"""A vision transformer that merges tokens beside transformers' own."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from arlo.catalog.schedule import merge_schedule  # noqa: E402
from arlo.compile.adapt.vision import PROTECTED, merging_vit, pool_image  # noqa: E402
from arlo.errors import CompileError  # noqa: E402


@pytest.fixture(scope="module")
def body() -> Any:
    torch.manual_seed(1)
    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, image_size=56, patch_size=14, layerscale_value=0.5
    )
    return transformers.Dinov2Model(config).eval()


def test_without_merges_it_is_the_body(body: Any) -> None:
    pixels = torch.randn(2, 3, 56, 56)
    with torch.inference_mode():
        hidden, size = merging_vit(body, [0, 0, 0])(pixels)
        wanted = body(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(hidden, wanted, rtol=1e-5, atol=1e-5)
    assert size.eq(1).all()


def test_merges_as_scheduled(body: Any) -> None:
    schedule = merge_schedule(17, 3, 3, protected=PROTECTED)
    with torch.inference_mode():
        hidden, size = merging_vit(body, schedule)(torch.randn(2, 3, 56, 56))
    assert hidden.shape[1] == 17 - sum(schedule) == 8
    assert size.sum(1).tolist() == [17, 17]
    assert size[:, 0].tolist() == [1, 1]  # the class token stands for itself alone


def test_patches_that_are_alike_change_nothing(body: Any) -> None:
    """Of an image of equal patches, without positions, merged tokens say together what they said alone."""
    position = body.embeddings.position_embeddings
    before = position.data.clone()
    position.data.zero_()
    try:
        pixels = torch.ones(1, 3, 56, 56) * 0.3
        with torch.inference_mode():
            plain = pool_image(*merging_vit(body, [0, 0, 0])(pixels))
            merged = pool_image(*merging_vit(body, [4, 3, 2])(pixels))
    finally:
        position.data.copy_(before)
    torch.testing.assert_close(merged, plain, rtol=1e-4, atol=1e-5)


def test_another_number_of_layers_is_refused(body: Any) -> None:
    with pytest.raises(CompileError, match="2 layers for a model of 3"):
        merging_vit(body, [1, 1])
