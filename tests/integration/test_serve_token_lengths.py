"""One model at several token counts, each of several maximum lengths, on a real Triton: a batch's count is chosen, and
its rows take the shortest engine of that count that they fit."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray

from arlo.catalog.manifest import Manifest
from arlo.cli.adapted import SERVE, read_adapted, write_adapted
from arlo.cli.app import main
from arlo.compile.adapt.measure import answers, encode, open_session
from tests.fakes.serving import serving
from tests.fakes.tiny_model import write_tiny

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(900)]  # the set-up makes four engines

SHORT, LONG = 16, 24
WORDS = ["red", "house", "tree", "seven", "run", "fast"]
TEXTS = [" ".join(WORDS[(i * i + j * (i + 1)) % 6] for j in range(1 + i % 9)) for i in range(120)]
CHOSEN = {SHORT: -3, LONG: 0}  # the count that rows of at most so many tokens are more accurate with


async def test_rows_take_the_shortest_engine_of_their_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARLO_CACHE", str(tmp_path / "cache"))
    source, out, data = write_tiny(tmp_path / "tiny" / "model"), tmp_path / "out", tmp_path / "data.jsonl"
    lines = [{"text": text, "label": "ab"[i % 2], "group": str(i)} for i, text in enumerate(TEXTS)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["adapt", str(source), "--merge", "0,3", "--lengths", f"{SHORT},{LONG}", "--data", str(data)]
    assert await asyncio.to_thread(main, [*words, "--max-batch", "4", "--slo-ms", "2000", "--out", str(out)]) == 0
    result = read_adapted(out)
    for each in result["variants"]:
        each["by_task"] = {"all": 0.7}
        each["bins_by_task"] = {
            "all": [
                {"max_length": end, "rows": 10**9, "accuracy": 0.9 if each["tokens"] == CHOSEN[end] else 0.5}
                for end in (SHORT, LONG)
                if end <= each["length"]
            ]
        }
    write_adapted(result, out)
    (out / "serve.toml").write_text(re.sub(r":800[123]", ":0", SERVE))
    texts, wanted = said_by_engines(out)
    short_takes(0.5, out / "m3")  # of the long one's time, whatever was measured beside other work
    async with serving(out) as served:
        demoted = await asyncio.to_thread(check, served.ready["grpc"], texts, wanted)
    assert demoted < len(texts) / 4

    # A short engine that is said to be slower than the long one: every row is demoted, and its answer says so.
    short_takes(1000, out / "m3")
    async with serving(out) as served:
        assert await asyncio.to_thread(check, served.ready["grpc"], texts, wanted) > demoted


def short_takes(share: float, repository: Path) -> None:
    """The manifest says that the short engine takes such a share of the long one's time."""
    manifest = Manifest.load(repository)
    short, long = manifest.runtimes
    points = tuple(
        dataclasses.replace(point, length=short.max_length, latency_us=round(share * point.latency_us))
        for point in long.latency
    )
    dataclasses.replace(manifest, runtimes=(dataclasses.replace(short, latency=points), long)).save(repository)


def said_by_engines(out: Path) -> tuple[list[str], dict[str, NDArray[np.float32]]]:
    """The texts that fit, and what each engine's file says of each that it takes; NaN of others."""
    manifest = Manifest.load(out / "m3")
    assert manifest.tokenizer is not None
    assert [runtime.max_length for runtime in manifest.runtimes] == [SHORT, LONG]
    every = encode(out / "m3" / manifest.tokenizer, TEXTS, 512)
    texts, rows = zip(*((text, row) for text, row in zip(TEXTS, every, strict=True) if len(row) <= LONG), strict=True)
    found = {}
    for count in (0, 3):
        for length in (SHORT, LONG):
            session = open_session(out / "models" / f"m{count}-{length}" / "model.onnx", 1)
            fits = [len(row) <= length for row in rows]
            said = np.full((len(rows), 2), np.nan, np.float32)
            some = [row for row, fit in zip(rows, fits, strict=True) if fit]
            said[fits] = answers(session, manifest.inputs, some, length)
            found[f"m{count}-{length}"] = said
    short = ~np.isnan(found[f"m3-{SHORT}"][:, 0])
    assert 20 < short.sum() < len(rows) - 20
    # Of the short engine real tokens are merged, of the long one padding: another answer, by which they are told apart.
    assert np.abs(found[f"m3-{SHORT}"] - found[f"m3-{LONG}"])[short].max() > 1e-3
    return list(texts), found


def check(address: str, texts: list[str], wanted: dict[str, NDArray[np.float32]]) -> int:
    """Every row's count, and the engine that its logits tell; a longer engine only of rows that the answer says were
    demoted, which a busy machine may do. How many those are."""
    short = ~np.isnan(wanted[f"m3-{SHORT}"][:, 0])
    outputs = [triton.InferRequestedOutput(name) for name in ("logits", "tokens")]
    demoted = 0
    with triton.InferenceServerClient(address) as client:
        for start in range(0, len(texts) - 3, 4):  # rows of all lengths in one request
            some = slice(start, start + 4)
            given = triton.InferInput("text", [4, 1], "BYTES")
            given.set_data_from_numpy(np.array(texts[some], np.object_)[:, None])
            answer = client.infer("model", [given], outputs=outputs)
            tokens, logits = answer.as_numpy("tokens").ravel(), answer.as_numpy("logits")
            assert tokens.tolist() == [CHOSEN[SHORT if fits else LONG] for fits in short[some]], texts[some]
            at = np.where(short[some], SHORT, LONG)
            ideal = np.stack([wanted[f"m{-n}-{e}"][start + i] for i, (n, e) in enumerate(zip(tokens, at, strict=True))])
            longer = np.stack([wanted[f"m{-n}-{LONG}"][start + i] for i, n in enumerate(tokens)])
            exact = np.isclose(logits, ideal, atol=1e-4).all(axis=1)
            np.testing.assert_allclose(np.where(exact[:, None], ideal, longer), logits, atol=1e-4)
            parameters = answer.get_response().parameters
            assert "demoted" in parameters
            allowed = parameters["demoted"].int64_param
            assert (~exact).sum() <= allowed, (texts[some], logits, ideal)
            demoted += allowed
    return demoted
