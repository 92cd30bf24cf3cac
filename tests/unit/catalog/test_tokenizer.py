"""What of a model's tokenizer.json goes to the gateway."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from arlo.catalog.manifest import Manifest
from arlo.catalog.tokenizer import MOST_BYTES, read_tokenizer
from arlo.workers.emulated.repository import write_emulated_repository


def test_the_file_as_it_is_now(tmp_path: Path) -> None:
    manifest = write_emulated_repository(tmp_path, model="emu", max_lengths=(64,), latency_ms=(1,))
    assert read_tokenizer(tmp_path, dataclasses.replace(manifest, tokenizer=None)) == b""
    named: Manifest = dataclasses.replace(manifest, tokenizer="tokenizer.json")
    assert read_tokenizer(tmp_path, named) == b""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"{}")
    assert read_tokenizer(tmp_path, named) == b"{}"
    path.write_bytes(b"[]")
    os.utime(path, ns=(1, 1))
    assert read_tokenizer(tmp_path, named) == b"[]"


def test_one_that_would_not_fit_into_a_deployment_is_left_out(tmp_path: Path) -> None:
    manifest = write_emulated_repository(tmp_path, model="emu", max_lengths=(64,), latency_ms=(1,))
    (tmp_path / "tokenizer.json").write_bytes(b" " * (MOST_BYTES + 1))
    assert read_tokenizer(tmp_path, dataclasses.replace(manifest, tokenizer="tokenizer.json")) == b""
