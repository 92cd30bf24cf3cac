"""The logical model that the plugin answers as: its configuration is one of Triton's, and says what was asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as messages

from arlo.catalog.logical import logical_config, write_logical_model
from arlo.catalog.manifest import Manifest, OutputTensor
from arlo.errors import ConfigError
from arlo.workers.emulated.repository import write_emulated_repository


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return write_emulated_repository(tmp_path, model="m", max_lengths=[64, 128], latency_ms=[1, 2], max_batch=4)


def parsed(text: str) -> Any:
    return text_format.Parse(text, messages.ModelConfig())


def test_it_takes_any_length(manifest: Manifest) -> None:
    config = parsed(logical_config(manifest, max_rows=16))
    assert (config.name, config.backend, config.max_batch_size) == ("m", "arlo", 16)
    assert [(each.name, list(each.dims), each.optional) for each in config.input] == [
        ("input_ids", [-1], False),
        ("attention_mask", [-1], True),
    ]
    assert {each.name: list(each.dims) for each in config.output} == {"last_hidden_state": [-1, 4], "embedding": [4]}
    assert not config.parameters


def test_texts_are_triton_strings(manifest: Manifest) -> None:
    texts = OutputTensor(name="label", datatype="BYTES", token_level=False, dims=(2,))
    config = parsed(logical_config(dataclasses.replace(manifest, outputs=(texts,))))
    assert [(each.name, each.data_type) for each in config.output] == [("label", messages.TYPE_STRING)]


def test_parameters_are_what_was_asked_for(manifest: Manifest) -> None:
    config = parsed(logical_config(manifest, slo_ms=50, policy="eft"))
    assert {key: value.string_value for key, value in config.parameters.items()} == {"slo_ms": "50", "policy": "eft"}


def test_the_folder_is_complete_and_replaced_whole(manifest: Manifest, tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    for content in (b"old", b"new"):
        library.write_bytes(content)
        folder = write_logical_model(tmp_path, manifest, library=library)
        assert sorted(each.name for each in folder.iterdir()) == ["1", "config.pbtxt", "libtriton_arlo.so"]
        assert (folder / "libtriton_arlo.so").read_bytes() == content


def test_what_cannot_be_served_is_refused(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no runtime m_len32: there are m_len128, m_len64"):
        write_logical_model(tmp_path, manifest, engines=("m_len32",))


def test_what_it_answers_with_is_found_again(manifest: Manifest, tmp_path: Path) -> None:
    assert Manifest.load(tmp_path).inside == ()
    write_logical_model(tmp_path, manifest)
    assert Manifest.load(tmp_path).inside == ("m_len64", "m_len128")
    write_logical_model(tmp_path, manifest, engines=("m_len128",))
    loaded = Manifest.load(tmp_path)
    assert loaded.inside == ("m_len128",)
    loaded.save(tmp_path)  # it is found, not kept
    assert "inside" not in (tmp_path / "arlo.json").read_text()
    config = tmp_path / "m" / "config.pbtxt"
    config.write_text(config.read_text().replace('backend: "arlo"', 'backend: "python"'))
    assert Manifest.load(tmp_path).inside == ()  # a model of somebody else's
