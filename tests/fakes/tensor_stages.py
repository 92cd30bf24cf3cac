"""Stages of tensors for tests: what `arlo wrap` is told of them, and requests for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton

CODE = Path(__file__).parent / "stage_models.py"
CUT = """\
[model]
name = "{name}"
files = {{"model.py" = "{code}"}}
max_batch = 4
counts = "count"
latency = [[1, 1, 5], [1, 4, 10]]
[parameters]
kind = "cut"
[[input]]
name = "page"
datatype = "BYTES"
dims = [1]
[[output]]
name = "count"
datatype = "INT32"
dims = [1]
on_request = true
[[output]]
name = "strips"
datatype = "BYTES"
dims = [1]
of_children = true
[[output]]
name = "place"
datatype = "INT32"
dims = [1]
of_children = true
[[output]]
name = "scores"
datatype = "FP32"
dims = [4]
"""
SUM = """\
[model]
name = "{name}"
files = {{"model.py" = "{code}"}}
max_batch = 8
max_length = 16
labels = ["even", "odd"]
latency = [[16, 1, 5], [16, 8, 10]]
[parameters]
kind = "sum"
[[input]]
name = "strip"
datatype = "UINT8"
dims = [-1, 2]
[[input]]
name = "place"
datatype = "INT32"
dims = [1]
[[input]]
name = "page"
datatype = "BYTES"
dims = [1]
[[output]]
name = "total"
datatype = "INT64"
dims = [1]
[[output]]
name = "echo"
datatype = "BYTES"
dims = [1]
[[output]]
name = "logits"
datatype = "FP32"
dims = [2]
on_request = true
"""
BEST = """\
[model]
name = "best"
files = {{"model.py" = "{code}"}}
max_batch = 8
latency = [[1, 1, 5]]
[parameters]
kind = "best"
[[input]]
name = "label"
datatype = "INT32"
dims = [1]
[[input]]
name = "score"
datatype = "FP32"
dims = [1]
[[output]]
name = "said"
datatype = "FP32"
dims = [2]
"""
SIZE = """\
[model]
name = "size"
files = {{"model.py" = "{code}"}}
max_batch = 4
latency = [[1, 1, 5], [1, 4, 10]]
[parameters]
kind = "size"
[[input]]
name = "page"
datatype = "BYTES"
dims = [1]
[[output]]
name = "total"
datatype = "INT64"
dims = [1]
[[output]]
name = "echo"
datatype = "BYTES"
dims = [1]
"""
ALL = """\
[model]
name = "all"
files = {{"model.py" = "{code}"}}
max_batch = 4
max_length = 64
latency = [[64, 1, 5], [64, 4, 10]]
[parameters]
kind = "all"
[[input]]
name = "total"
datatype = "INT64"
dims = [-1, 1]
[[input]]
name = "echo"
datatype = "BYTES"
dims = [1]
[[output]]
name = "lines"
datatype = "INT32"
dims = [1]
[[output]]
name = "sum"
datatype = "INT64"
dims = [1]
[[output]]
name = "text"
datatype = "BYTES"
dims = [1]
"""


def inputs_of(pages: Sequence[bytes]) -> list[Any]:
    one = triton.InferInput("page", [len(pages), 1], "BYTES")
    one.set_data_from_numpy(np.asarray([*pages, b""], np.object_)[:-1].reshape(-1, 1))
    return [one]
