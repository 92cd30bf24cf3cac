"""`arlo compile inspect`: what is found in a repository, what is wrong with it, and how it is said."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from arlo.catalog.manifest import (
    Compared,
    InputTensor,
    LatencyPoint,
    Manifest,
    OutputTensor,
    Recommendation,
    Runtime,
    Verification,
)
from arlo.cli import main
from arlo.compile.repository.inspect import FileProblem, check_files, inspect_repository
from arlo.errors import ConfigError
from arlo.workers.emulated.repository import write_emulated_repository

CONFIG = """\
name: "{name}"
backend: "{backend}"
max_batch_size: 4
input [ {{ name: "input_ids" data_type: TYPE_INT64 dims: [ {tokens} ] }} ]
output [
  {{ name: "tokens" data_type: TYPE_FP32 dims: [ {tokens}, 8 ] }},
  {{ name: "pooled" data_type: TYPE_FP32 dims: [ 8 ] }}
]
instance_group [ {{ kind: KIND_GPU count: 2 }} ]
dynamic_batching {{ }}
model_warmup [ {{ name: "full" batch_size: 4 }} ]
"""
VERIFIED = Verification(
    rows=12, max_abs_diff=3e-4, padding_diff=1e-5, cosine=0.9999987, agreement=0.9996, ran_on="a GPU", engine_ran=True
)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def engines(tmp_path: Path) -> Path:
    """A repository like one of TensorRT engines: two static ones and a dynamic one, which share their weights."""
    repository = tmp_path / "engines"
    weights = tmp_path / "weights"
    weights.write_bytes(b"w" * 5000)
    runtimes = []
    for name, length, dynamic in (("m_len64", 64, False), ("m_len512", 512, False), ("m_dynamic", 512, True)):
        folder = repository / name
        (folder / "1").mkdir(parents=True)
        text = CONFIG.format(name=name, backend="tensorrt", tokens=-1 if dynamic else length)
        (folder / "config.pbtxt").write_text(text)
        (folder / "1" / "model.plan").write_bytes(name.encode() * 100)
        os.link(weights, folder / "1" / "weights.bin")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        lengths = (64, 512) if dynamic else (length,)
        runtimes.append(
            Runtime(
                name=name,
                max_length=length,
                max_batch=4,
                dynamic=dynamic,
                engine="tensorrt",
                precision="fp16",
                device="NVIDIA Something",
                backend="tensorrt",
                compute_capabilities=("SM89",),
                latency=tuple(
                    LatencyPoint(length=at, batch=b, latency_us=at * b * 10) for at in lengths for b in (1, 2, 4)
                ),
                verification=VERIFIED,
                memory_mb=None if dynamic else length * 10,
                files={str(path.relative_to(repository)): sha256(path) for path in files},
            )
        )
    Manifest(
        model="m",
        task="sequence-classification",
        source="[a folder]",
        tokenizer="tokenizer.json",
        inputs=(InputTensor(name="input_ids", datatype="INT64", role="ids"),),
        outputs=(
            OutputTensor(name="tokens", datatype="FP32", token_level=True, dims=(8,)),
            OutputTensor(name="pooled", datatype="FP32", token_level=False, dims=(8,)),
        ),
        runtimes=tuple(runtimes),
        tools={"tensorrt": "10.0"},
        recommendation=Recommendation(
            serve="static",
            why="it is quicker",
            device="NVIDIA Something",
            lengths="tweets",
            mean_us={"static": 800.0, "dynamic": 1600.0, "padded": 5120.0, "profiles": 900.0},
            compared=(
                Compared(length=64, static_us=640.0, dynamic_us=1280.0, padded_us=5120.0),
                Compared(length=512, static_us=5120.0, dynamic_us=None, padded_us=5120.0),
            ),
        ),
    ).save(repository)
    (repository / "tokenizer.json").write_text("{}")
    return repository


def change(repository: Path, name: str, **fields: Any) -> None:
    """Change fields of a runtime in the manifest."""
    manifest = Manifest.load(repository)
    runtimes = tuple(dataclasses.replace(r, **fields) if r.name == name else r for r in manifest.runtimes)
    dataclasses.replace(manifest, runtimes=runtimes).save(repository)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["compile", "inspect", *arguments]) == code
    return capsys.readouterr().out


def test_a_whole_repository(engines: Path) -> None:
    found = inspect_repository(engines)
    assert found.disagreements == ()
    assert check_files(engines, found.manifest) == []
    first = found.runtimes[0]
    assert (first.bytes, first.shared_bytes) == (700 + (engines / "m_len64" / "config.pbtxt").stat().st_size, 5000)
    assert found.files == 3 * 3 + 2
    once = {path.stat().st_ino: path.stat().st_size for path in engines.rglob("*") if path.is_file()}
    assert found.bytes == sum(once.values())
    triton = first.triton
    assert triton is not None
    assert (triton.backend, triton.instances, triton.kind, triton.max_batch_size) == ("tensorrt", 2, "GPU", 4)
    assert (triton.batching, triton.warmups) == (True, 1)
    assert found.next_steps == (f'arlo serve serve.toml: with repository = "{engines}" in [model]',)
    assert inspect_repository(engines / "arlo.json").manifest == found.manifest


def test_what_people_read(engines: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = shown(capsys, str(engines), "--check")
    assert max(len(line) for line in out.splitlines()) <= 80
    words = " ".join(out.split())
    for text in (
        "m sequence-classification, 3 runtime(s)",
        "source [a folder]",
        "tokens: FP32 [rows, tokens, 8] pooled: FP32 [rows, 8]",
        "tensorrt fp16 for SM89, served by Triton's tensorrt backend",
        "m_dynamic 1-512 ",
        "3.0e-04 5.12 10.24 20.48",
        "memory: once opened, with a full batch; all 2 static ones on one worker: 5.76 GB, and Triton's processes",
        "on 12 texts, on a GPU",
        "lowest cosine 0.999998 ",
        "labels that are the same: 99.96 %",
        "2 instance(s) on the GPU, dynamic batching up to 4 rows, 1 warm-up request(s)",
        "every config.pbtxt agrees with the manifest",
        "a static runtime per length, on NVIDIA Something it is quicker",
        "64 tokens 0.64 1.28 5.12 2.00",
        "512 tokens 5.12 - 5.12 -",
        "mean of the traffic 0.80 1.60 5.12 2.00",
        "several profiles - 0.90 - 1.12",
        "all 9 files are what the manifest says",
    ):
        assert text in words, text


def test_json_says_the_same(engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = json.loads(shown(capsys, str(engines), "--json", "--check"))
    assert raw["problems"] == []
    assert raw["runtimes"][1]["triton"]["kind"] == "GPU"
    assert raw["runtimes"][1]["shared_bytes"] == 5000
    assert ([each["memory_mb"] for each in raw["runtimes"]], raw["bundle_memory_mb"]) == ([640, 5120, None], 5760)
    assert raw["recommendation"]["serve"] == "static"
    assert "problems" not in json.loads(shown(capsys, str(engines), "--json"))


def test_damage_is_named(engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, config = engines / "m_len512" / "1" / "model.plan", engines / "m_len64" / "1" / "weights.bin"
    plan.write_bytes(b"x" * plan.stat().st_size)  # the same size: only its hash tells
    config.unlink()
    (engines / "m_len64" / "notes.txt").write_text("mine")
    assert check_files(engines, Manifest.load(engines)) == [
        FileProblem(path="m_len512/1/model.plan", problem="damaged"),
        FileProblem(path="m_len64/1/weights.bin", problem="missing"),
        FileProblem(path="m_len64/notes.txt", problem="extra"),
    ]
    out = shown(capsys, str(engines), "--check", code=1)
    for text in ("missing  m_len64/1/weights.bin", "damaged  m_len512/1/model.plan", "extra  m_len64/notes.txt"):
        assert text in out
    assert "build the repository again" in out


def test_an_extra_file_is_no_failure(engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (engines / "reference.npz").write_bytes(b"")  # the reference answers of the build
    assert check_files(engines, Manifest.load(engines)) == []
    (engines / "README").write_text("mine")
    assert "extra  README" in shown(capsys, str(engines), "--check")


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('name: "m_len64"', 'name: "other"', "has the name other, the manifest m_len64"),
        ('backend: "tensorrt"', 'platform: "onnxruntime_onnx"', "has the backend onnxruntime, the manifest tensorrt"),
        ("max_batch_size: 4", "max_batch_size: 8", "has max_batch_size 8, the manifest 4"),
        ("dims: [ 64 ]", "dims: [ 96 ]", r"input input_ids is INT64 [96] in Triton's configuration, INT64 [64] in"),
        ("TYPE_INT64", "TYPE_INT32", "input input_ids is INT32 [64]"),
        ('"pooled"', '"logits"', "output pooled is not in Triton's configuration"),
        ('"pooled"', '"logits"', "output logits of Triton's configuration is not in the manifest"),
        ("dims: [ 8 ]", "dims: [ 9 ]", "output pooled is FP32 [9]"),
        ("input [", "inputs [", "config.pbtxt is not a Triton model configuration"),
    ],
)
def test_where_triton_and_the_manifest_differ(
    engines: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, text: str
) -> None:
    path = engines / "m_len64" / "config.pbtxt"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    found = inspect_repository(engines)
    assert any(text in each and each.startswith("m_len64: ") for each in found.disagreements), found.disagreements
    assert not found.runtimes[1].disagreements
    assert found.next_steps[0].startswith("build the repository again")
    assert "m_len64: " in shown(capsys, str(engines), code=1)


def test_the_file_that_triton_opens_must_be_there(engines: Path) -> None:
    (engines / "m_len64" / "1" / "model.plan").unlink()
    assert inspect_repository(engines).disagreements == ("m_len64: m_len64/1/model.plan is missing",)
    change(engines, "m_len64", files={})
    assert inspect_repository(engines).disagreements == (
        "m_len64: 1/model.plan, which Triton's tensorrt backend opens, is missing",
    )
    (engines / "m_len512" / "config.pbtxt").unlink()
    assert inspect_repository(engines).disagreements[1:] == ("m_len512: config.pbtxt is missing",)


def test_of_many_batches_some_are_shown(engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = (1, 2, 4, 8, 16, 32, 64, 128)
    points = tuple(LatencyPoint(length=64, batch=b, latency_us=b * 1000) for b in rows)
    change(engines, "m_len64", latency=points)
    words = " ".join(shown(capsys, str(engines)).split())
    assert "1.00 4.00 16.00 128.0" in words
    assert len(json.loads(shown(capsys, str(engines), "--json"))["runtimes"][0]["latency"]) == len(rows)


def test_what_a_load_takes_is_shown_where_it_is_known(engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "load:" not in shown(capsys, str(engines))
    change(engines, "m_len64", load_ms=1234)
    words = shown(capsys, str(engines))
    assert "1.2 s" in words
    assert "load: until a worker had loaded it, through Triton" in words
    raw = json.loads(shown(capsys, str(engines), "--json"))
    assert [each["load_ms"] for each in raw["runtimes"]] == [1234, None, None]


def test_memory_that_is_not_known_is_no_sum(engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(engines, "m_len64", memory_mb=None)
    assert json.loads(shown(capsys, str(engines), "--json"))["bundle_memory_mb"] is None
    assert "on one worker" not in shown(capsys, str(engines))


def test_engines_that_did_not_run_here(engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(engines, "m_len64", latency=(), device="", verification=dataclasses.replace(VERIFIED, engine_ran=False))
    words = " ".join(shown(capsys, str(engines)).split())
    assert "3.0e-04* - -" in words
    assert "*: the engines of m_len64 were not run: no device here does; their graphs were" in words
    assert "no latency was measured of m_len64" in words
    together = "".join(words.split())  # a long path is broken where the line ends
    assert f"nextarlocompileverify{engines}:" in together
    assert f"arlocompileprofile{engines}--update:measure" in together


def test_an_emulated_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_emulated_repository(tmp_path, model="emu", max_lengths=(64, 512), latency_ms=(1, 5), max_batch=4)
    words = " ".join(shown(capsys, str(tmp_path), "--check").split())
    assert "emulated: computes nothing" in words
    assert "not verified" in words
    assert "nothing: there is no dynamic runtime to compare with" in words
    assert "all 2 files are what the manifest says" in words


@pytest.mark.long
def test_a_build(first_build: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A real one, of the pipeline: whole, and Triton's configurations agree."""
    found = inspect_repository(first_build.options.out)
    assert found.disagreements == ()
    assert check_files(found.repository, found.manifest) == []
    assert all(each.shared_bytes > each.bytes for each in found.runtimes)  # the weights
    assert "tiny_len16" in shown(capsys, str(found.repository), "--check")


def test_what_is_no_repository(tmp_path: Path, engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="does not exist: name a repository"):
        inspect_repository(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="is a file: name the folder"):
        inspect_repository(engines / "tokenizer.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"has no arlo.json: build the repository"):
        inspect_repository(tmp_path / "empty")
    raw = json.loads((engines / "arlo.json").read_text())
    (engines / "arlo.json").write_text(json.dumps({**raw, "format": 1}))
    assert main(["compile", "inspect", str(engines)]) == 2
    assert "is not of manifest format 2: build the repository again" in capsys.readouterr().err


def test_a_tokenizer_that_is_gone(engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (engines / "tokenizer.json").unlink()
    assert "missing  tokenizer.json" in shown(capsys, str(engines), "--check", code=1)
