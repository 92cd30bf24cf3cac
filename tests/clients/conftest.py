"""`arlo serve` of four tiny models on real Triton, for the clients that `make clients` installs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arlo.compile import CompileOptions, compile_model
from arlo.workers.ports import free_port
from tests.fakes import serving
from tests.fakes.tiny_model import MAX_TOKENS, write_tiny

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "clients" / "bin" / "python"
CALLS = Path(__file__).parent / "calls"
MODELS: dict[str, dict[str, Any]] = {
    "embedder": {"pooling": {"pooling_mode_mean_tokens": True}},
    "reranker": {"head": "ForSequenceClassification", "labels": 1},
    "classifier": {"head": "ForSequenceClassification"},
    "indexer": {"pooling": {"pooling_mode_mean_tokens": True}},
}
SLO_MS = {"indexer": 50}  # far below what a thousand of its rows take
SERVE = """
[workers]
count = 1
run_dir = "run"
[gateway]
grpc_address = "127.0.0.1:0"
http_address = "127.0.0.1:0"
admin_address = "127.0.0.1:0"
api_address = "127.0.0.1:{port}"
[control]
http_address = "127.0.0.1:0"
"""
MODEL = """
[[model]]
name = "{name}"
repository = "{name}.out"
slo_ms = {slo_ms}
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models' folders, as transformers reads them."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def served(folder: Path) -> Iterator[str]:
    """The base of the HTTP API's addresses."""
    for name, how in MODELS.items():
        source = write_tiny(folder / name, **how)
        out = folder / f"{name}.out"
        compile_model(CompileOptions(source=source, out=out, lengths=(MAX_TOKENS,), cache=folder / "cache"))
    port = free_port("127.0.0.1")
    text = "".join(MODEL.format(name=name, slo_ms=SLO_MS.get(name, 5000)) for name in MODELS) + SERVE.format(port=port)
    (folder / "serve.toml").write_text(text)
    with serving.served(folder):
        yield f"http://127.0.0.1:{port}"


def call(client: str, *words: str) -> Any:
    """What a client's script in calls/ prints."""
    if not PYTHON.exists():
        pytest.skip("the clients' packages are not there: make clients")
    done = subprocess.run(
        (str(PYTHON), str(CALLS / f"{client}_calls.py"), *words),
        capture_output=True, text=True, timeout=300, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
