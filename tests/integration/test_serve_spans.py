"""Pipelines between tensors and token ids, on real Triton: texts that a stage gives, spans that a stage marks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton

from arlo.catalog.manifest import InputTensor, LatencyPoint, Manifest, OutputTensor, Runtime
from arlo.catalog.wrapped import wrap
from arlo.workers.emulated.repository import write_emulated_repository
from tests.fakes.serving import PORTS, serving
from tests.fakes.tensor_stages import CODE, CUT, inputs_of
from tests.fakes.tiny_model import write_tokenizer

pytestmark = [pytest.mark.integration, pytest.mark.long]

LONGEST = 16
SERVE = f"""\
[pipeline]
flow = "flow.toml"
[workers]
count = 1
{PORTS}"""


def write_flow(folder: Path, first: str, expand: str) -> None:
    (folder / "serve.toml").write_text(SERVE)
    (folder / "flow.toml").write_text(
        f"""\
[flow]
name = "flow"
slo_ms = 20000
[[flow.stage]]
name = "first"
variants = [{{repository = "{first}", accuracy = 1.0}}]
[[flow.stage]]
name = "embed"
variants = [{{repository = "emu", accuracy = 1.0}}]
[[flow.edge]]
from = "first"
to = "embed"
expand = {{{expand}}}
"""
    )


def write_emu(folder: Path, *, tokenizer: bool) -> None:
    """What tells the sum of the ids that it was given."""
    made = write_emulated_repository(
        folder / "emu", model="emu", max_lengths=(8, LONGEST), latency_ms=(1, 1), max_batch=4
    )
    if tokenizer:
        write_tokenizer(folder / "emu")
        dataclasses.replace(made, tokenizer="tokenizer.json").save(folder / "emu")


async def test_texts_become_token_ids(tmp_path: Path) -> None:
    """A stage that gives texts before a model of token ids: each is tokenized, and cut where it is too long."""
    from tokenizers import Tokenizer

    (tmp_path / "cut.toml").write_text(CUT.format(name="cut", code=CODE))
    wrap(tmp_path / "cut.toml", tmp_path / "cut")
    write_emu(tmp_path, tokenizer=True)
    write_flow(tmp_path, "cut", 'kind = "tensor", inputs = {text = "strips"}')
    tokenizer = Tokenizer.from_file(str(tmp_path / "emu" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    pages = [b"ab|the quick|" + b"brown fox " * 20, b"|", b"jumps over"]
    async with serving(tmp_path) as served, triton.InferenceServerClient(served.ready["grpc"]) as client:
        wanted = [triton.InferRequestedOutput(name) for name in ("embedding", "row", "children")]
        answer = await client.infer("flow", inputs_of(pages), outputs=wanted)
    parts = [(row, part) for row, page in enumerate(pages) for part in page.split(b"|") if part]
    sums = []
    for _, part in parts:
        text = bytes(letter for letter in part for _ in range(2)).decode()
        sums.append(sum(tokenizer.encode(text).ids))
    assert answer.as_numpy("row").tolist() == [row for row, _ in parts]
    assert answer.as_numpy("embedding")[:, 0].tolist() == sums
    assert answer.as_numpy("children").tolist() == [3, 0, 1]


def write_tag(folder: Path) -> None:
    """A model of token ids with labels for each token, which `arlo compile` would have written."""
    inputs = (
        InputTensor(name="input_ids", datatype="INT64", role="ids"),
        InputTensor(name="attention_mask", datatype="INT64", role="mask"),
    )
    target = folder / "tag" / "tag"
    (target / "1").mkdir(parents=True)
    (target / "1" / "model.py").write_text(CODE.read_text())
    tensors = "".join(f'input {{ name: "{one.name}" data_type: TYPE_INT64 dims: [ -1 ] }}\n' for one in inputs)
    (target / "config.pbtxt").write_text(
        f'name: "tag"\nbackend: "python"\nmax_batch_size: 4\n{tensors}'
        'output { name: "tags" data_type: TYPE_FP32 dims: [ -1, 3 ] }\n'
        'output { name: "pooled" data_type: TYPE_FP32 dims: [ 1 ] }\n'
        'parameters { key: "kind" value { string_value: "tag" } }\n'
    )
    Manifest(
        model="tag",
        task="token-classification",
        source="by hand",
        tokenizer=None,
        inputs=inputs,
        outputs=(OutputTensor(name="tags", datatype="FP32", token_level=True, dims=(3,)),),
        runtimes=(
            Runtime(
                name="tag",
                max_length=LONGEST,
                max_batch=4,
                dynamic=True,
                engine="python",
                precision="",
                device="none",
                latency=(LatencyPoint(length=LONGEST, batch=1, latency_us=2000),),
            ),
        ),
        labels=("O", "B-x", "I-x"),
    ).save(folder / "tag")


def spans_of(row: list[int]) -> list[list[int]]:
    """The dumb version: what B begins and I goes on with, without the ends of the row."""
    spans: list[list[int]] = []
    inside = False
    for token in row[1:-1]:
        if token % 3 == 1 or (token % 3 == 2 and not inside):
            spans.append([])
        if token % 3:
            spans[-1].append(token)
        inside = token % 3 != 0
    return [[row[0], *span, row[-1]] for span in spans]


async def test_spans_become_rows(tmp_path: Path) -> None:
    write_tag(tmp_path)
    write_emu(tmp_path, tokenizer=False)
    write_flow(tmp_path, "tag", 'kind = "spans", output = "tags", max = 4')
    random = np.random.default_rng(1)
    rows = [[101, *random.integers(3, 300, size).tolist(), 102] for size in (1, 3, 6, 10, 14, 14, 0)]
    width = max(map(len, rows))
    ids, mask = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = row, 1
    tensors: list[Any] = []
    for name, array in (("input_ids", ids), ("attention_mask", mask)):
        tensors.append(triton.InferInput(name, array.shape, "INT64"))
        tensors[-1].set_data_from_numpy(array)
    async with serving(tmp_path) as served, triton.InferenceServerClient(served.ready["grpc"]) as client:
        answer = await client.infer("flow", tensors)
    wanted = [(number, sum(span)) for number, row in enumerate(rows) for span in spans_of(row)[:4]]
    assert answer.as_numpy("row").tolist() == [number for number, _ in wanted]
    assert answer.as_numpy("embedding")[:, 0].tolist() == [total for _, total in wanted]
    assert {number for number, _ in wanted} < set(range(len(rows)))
