"""Signals through `arlo serve`: a real engine on a real Triton, asked with and without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from arlo.client import AsyncClient
from arlo.compile import CompileOptions, compile_model
from tests.fakes.serving import PORTS, serving
from tests.fakes.tiny_model import write_tiny

pytestmark = pytest.mark.integration

CONFIG = f"""\
[model]
repository = "repository"
slo_ms = 500
[deployment]
allocation = {{16 = 1, 32 = 1}}
{PORTS}"""


async def test_signals_come_to_those_who_name_them(tmp_path: Path) -> None:
    options = CompileOptions(
        source=write_tiny(tmp_path / "tiny", head="ForSequenceClassification"),
        out=tmp_path / "repository",
        cache=tmp_path / "cache",
        lengths=(16, 32),
        dynamic=False,
        importance="all",
        confidence=True,
    )
    manifest = compile_model(options)
    assert manifest.importance is not None
    (tmp_path / "serve.toml").write_text(CONFIG)
    random = np.random.default_rng(3)
    async with serving(tmp_path) as one, AsyncClient(one.ready["grpc"], model="tiny") as client:
        plain = await client.infer(random.integers(5, 300, 11))
        assert list(plain.outputs) == ["logits"]
        for length in (3, 16, 17, 32):  # two runtimes, padded and full
            ids = random.integers(5, 300, length)
            result = await client.infer(ids, outputs=["logits", "confidence", "importance"])
            assert result["importance"].shape == (length,)
            assert result["importance"].sum() == pytest.approx(manifest.importance.maps * length, rel=1e-5)
            shares = np.exp(result["logits"] - result["logits"].max())
            assert result["confidence"].item() == pytest.approx(shares.max() / shares.sum(), rel=1e-5)
