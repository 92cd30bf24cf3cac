"""Model code for Triton: a page (BYTES, an image) into its lines, by the detector of PP-OCRv4.

Outputs: `count` [rows, 1]; of each line of all pages `strips` (BYTES: columns of 48 grey pixels, the line's height) and
`boxes` (left, top, right, bottom, in pixels of the page). Parameters `side`: pixels of the longer side that the network
sees; `longest`: columns of a strip at most. Boxes stand upright: pages of print are. An empty image has no lines.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

HEIGHT = 48  # of a strip
INK, SURE, GROW = 0.3, 0.5, 1.1  # of a pixel; of a box, on average; area x this / circumference is added around it


class TritonPythonModel:
    """See the module."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the detector, which lies beside this file."""
        import onnxruntime

        config = json.loads(args["model_config"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._side = int(config["parameters"]["side"]["string_value"])
        self._longest = int(config["parameters"]["longest"]["string_value"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response to each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        counts, strips, boxes = [], [], []
        for page in pb_utils.get_input_tensor_by_name(request, "page").as_numpy().reshape(-1):
            try:
                found = self._lines(np.asarray(Image.open(io.BytesIO(page)).convert("L"))) if page else []
            except OSError as error:
                return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"the page is no image: {error}"))
            counts.append(len(found))
            for box, strip in found:
                boxes.append(box)
                strips.append(strip.tobytes())
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("count", np.asarray(counts, np.int32).reshape(-1, 1)),
                pb_utils.Tensor("strips", np.asarray(strips, np.object_).reshape(-1, 1)),
                pb_utils.Tensor("boxes", np.asarray(boxes, np.int32).reshape(-1, 4)),
            ]
        )

    def _lines(self, page: Any) -> list[tuple[tuple[int, int, int, int], Any]]:
        height, width = page.shape
        scale = self._side / max(height, width)
        across, down = (max(32, round(size * scale / 32) * 32) for size in (width, height))
        small = np.asarray(Image.fromarray(page).resize((across, down), Image.Resampling.BILINEAR), np.float32)
        pixels = np.repeat((small / 255 - 0.5)[None, None] / 0.5, 3, axis=1)
        heat = self._session.run(None, {self._session.get_inputs()[0].name: pixels})[0][0, 0]
        found = []
        for left, top, right, bottom in boxes_of(heat):
            box = (
                max(int(left * width / across), 0),
                max(int(top * height / down), 0),
                min(int(np.ceil(right * width / across)), width),
                min(int(np.ceil(bottom * height / down)), height),
            )
            if box[2] - box[0] < 3 or box[3] - box[1] < 3:
                continue
            found.append((box, strip_of(page, box, self._longest)))
        return in_order(found)


def boxes_of(heat: Any) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of each patch of the map that is likely text."""
    from scipy import ndimage

    labels, _ = ndimage.label(ndimage.binary_dilation(heat > INK, np.ones((2, 2))))
    found = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        part = labels[rows, columns] == number
        if heat[rows, columns][part].mean() < SURE:
            continue
        high, wide = rows.stop - rows.start, columns.stop - columns.start
        grow = high * wide * GROW / (2 * (high + wide))
        found.append((columns.start - grow, rows.start - grow, columns.stop + grow, rows.stop + grow))
    return found


def strip_of(page: Any, box: tuple[int, int, int, int], longest: int) -> Any:
    """A part of a page at the height of a strip, columns first."""
    left, top, right, bottom = box
    wide = min(max(round((right - left) * HEIGHT / (bottom - top)), 8), longest)
    part = Image.fromarray(page[top:bottom, left:right]).resize((wide, HEIGHT), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(part).T)


def in_order(found: list[tuple[tuple[int, int, int, int], Any]]) -> list[tuple[tuple[int, int, int, int], Any]]:
    """As they are read: line by line, from left to right. Boxes are of one line where their middles are."""
    lines: list[list[tuple[tuple[int, int, int, int], Any]]] = []
    for each in sorted(found, key=lambda one: one[0][1] + one[0][3]):
        middle = (each[0][1] + each[0][3]) / 2
        last = lines[-1][0][0] if lines else None
        if last is not None and last[1] + (last[3] - last[1]) * 0.25 < middle < last[3] - (last[3] - last[1]) * 0.25:
            lines[-1].append(each)
        else:
            lines.append([each])
    return [each for line in lines for each in sorted(line, key=lambda one: one[0][0])]
