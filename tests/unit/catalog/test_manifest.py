"""`arlo.json` as somebody may have left it: what cannot be served is refused, in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arlo.catalog.manifest import FILE_NAME, Manifest
from arlo.errors import ConfigError
from arlo.workers.emulated.repository import write_emulated_repository

Raw = dict[str, Any]


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    write_emulated_repository(tmp_path, model="emu", max_lengths=(16, 64), latency_ms=(1, 2))
    found: Raw = json.loads((tmp_path / FILE_NAME).read_text())
    return found


def load(folder: Path, raw: Raw) -> Manifest:
    (folder / FILE_NAME).write_text(json.dumps(raw))
    return Manifest.load(folder)


def set_runtime(**values: object) -> Callable[[Raw], None]:
    return lambda raw: raw["runtimes"][1].update(values)


def set_latency(**values: object) -> Callable[[Raw], None]:
    return lambda raw: raw["runtimes"][1]["latency"][0].update(values)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (set_latency(latency_us=-2000), "latency of -2000 us"),
        (set_latency(latency_us=1e3), "latency of 1000.0 us"),
        (set_latency(latency_us=None), "latency of None us"),
        (set_latency(length=0), "1 row(s) of 0 tokens"),
        (set_runtime(max_length=10**9), "max_length 1000000000; it is 1 to 1048576"),
        (set_runtime(max_length="64"), "max_length 64; it is"),
        (set_runtime(max_batch=0), "max_batch 0"),
        (lambda raw: raw.update(tokenizer="/etc/passwd"), "the tokenizer '/etc/passwd' is not in the repository"),
        (lambda raw: raw.update(tokenizer="../tokenizer.json"), "is not in the repository"),
        (lambda raw: raw.update(tokenizer=""), "is not in the repository"),
        (lambda raw: raw.update(tokenizer=7), "is not in the repository"),
        (lambda raw: raw.update(model="../x"), "'../x' cannot name a model"),
        (lambda raw: raw.update(model="a\x1b[31m"), r"'a\x1b[31m' cannot name a model"),
        (lambda raw: raw.update(model="n" * 201), "cannot name a model"),
        (set_runtime(max_length=16), "a static runtime of max_length 16 is given twice"),
        (set_runtime(name="emu_len16"), "runtime emu_len16 is given twice"),
        (set_runtime(name="../../x"), "'../../x' cannot be the name of a runtime"),
        (set_runtime(name=".."), "'..' cannot be the name"),
        (set_runtime(name=7), "7 cannot be the name"),
        (set_runtime(files={"../secret": "00"}), "a file outside the repository: ../secret"),
        (
            lambda raw: raw["inputs"][1].update(role="king"),
            "has the role 'king'; known are ids, mask, other and tensor",
        ),
        (lambda raw: raw["inputs"][1].update(role="ids"), "one input must have the role ids"),
        (lambda raw: raw["inputs"][1].update(datatype="FP32"), "is 'FP32'; inputs are INT64 or INT32"),
        (lambda raw: raw["inputs"][1].update(name="input_ids"), "input 'input_ids' is given twice"),
        (lambda raw: raw["outputs"][0].update(dims=["a"]), "has the dims ['a']"),
        (lambda raw: raw.update(runtimes=[]), "lists no runtimes"),
        (lambda raw: raw.update(runtimes=7), "lacks or misnames a field"),
        (lambda raw: raw.update(model=""), "'' cannot name a model"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, raw: Raw, change: Callable[[Raw], None], says: str) -> None:
    change(raw)
    with pytest.raises(ConfigError) as found:
        load(tmp_path, raw)
    assert says in str(found.value)


def test_what_was_written_is_loaded(tmp_path: Path, raw: Raw) -> None:
    assert load(tmp_path, raw).runtimes[1].max_length == 64


@pytest.mark.parametrize("content", [b'\xff\xfe{"format": 2}', b"\x00\x9f", b"[" * 100_000, b"{", b"7", b""])
def test_what_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ConfigError, match=r"is not (JSON|of manifest format)"):
        Manifest.load(tmp_path)


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        Manifest.load(tmp_path)
