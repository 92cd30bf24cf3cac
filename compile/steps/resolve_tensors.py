"""Step 1, resolve, without token ids: models of pictures, and of anything of a fixed size.

An ONNX file whose inputs are [rows, ...] with only the rows free, or the folder of a vision transformer. How long a row
is, is read from config.json: by `patch_size` of a vision transformer; else it is 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arlo.catalog.manifest import InputTensor
from arlo.catalog.tensors import MAX_DIMS, row_length
from arlo.compile.steps.folder import SIZE, Settings
from arlo.errors import ConfigError

if TYPE_CHECKING:
    import onnx

PIXELS = "pixel_values"
_KINDS = {1: "FP32", 2: "UINT8", 6: "INT32", 7: "INT64", 10: "FP16"}  # by TensorProto.DataType


def tensor_inputs(path: Path, inputs: Sequence[onnx.ValueInfoProto]) -> tuple[InputTensor, ...]:
    """The inputs, in the order of the file. ConfigError for an input with free axes in addition to the rows."""
    found = []
    for value in inputs:
        kind = value.type.tensor_type
        axes = kind.shape.dim
        sizes = tuple(axis.dim_value for axis in axes[1:])
        if kind.elem_type not in _KINDS or not axes or not all(sizes) or len(sizes) > MAX_DIMS:
            raise ConfigError(
                f"{path} has no input_ids, and its input {value.name} cannot be served as a tensor: such inputs are "
                f"[rows, ...] with all axes fixed but the rows, of {', '.join(_KINDS.values())}"
            )
        found.append(InputTensor(name=value.name, datatype=_KINDS[kind.elem_type], role="tensor", dims=sizes))
    return tuple(found)


def picture_inputs(config: Settings) -> tuple[InputTensor, ...]:
    """Inputs of a vision transformer in transformers; none for other models. ConfigError if it cannot be served."""
    if not {"image_size", "patch_size"} <= config.keys():
        return ()
    image, patch = config["image_size"], config.read("patch_size", SIZE, 1)
    sides = image if isinstance(image, list) else [image, image]
    if len(sides) != 2 or any(not SIZE.fits(side) or side % patch for side in sides):
        raise config.refused("image_size", f"is not made of whole patches of {patch}", "choose another model")
    dims = (config.read("num_channels", SIZE, 3), *sides)
    return (InputTensor(name=PIXELS, datatype="FP32", role="tensor", dims=dims, length_rule=f"patches:{patch}"),)


def with_rule(inputs: tuple[InputTensor, ...], config: Settings) -> tuple[tuple[InputTensor, ...], int]:
    """The inputs with the rule by which rows have a length, and that length."""
    patch = config.get("patch_size")
    first, *others = inputs
    for rule in ([f"patches:{patch}"] if SIZE.fits(patch) else []) + ["constant"]:
        ruled = (dataclasses.replace(first, length_rule=rule), *others)
        try:
            length = row_length(ruled)
        except ValueError:
            continue
        assert length is not None
        return ruled, length
    raise AssertionError("every tensor has a constant length")
