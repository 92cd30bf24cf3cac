"""Pipelines between tensors and token ids, on real Triton: texts that a stage gives, spans that a stage marks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tritonclient.grpc.aio as triton

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
