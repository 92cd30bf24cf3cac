"""`arlo compile verify`: a repository on this machine, whole, damaged, not exact, or with engines of elsewhere."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import arlo.compile.engines.onnxruntime as engine_module
from arlo.catalog.manifest import Manifest, Verification
from arlo.compile.progress import Progress
from arlo.compile.tools.verify import add_parser, run, verify_repository
from arlo.errors import ConfigError, EnvironmentProblem
from tests.unit.compile.conftest import FirstBuild


@pytest.fixture
def repository(first_build: FirstBuild, tmp_path: Path) -> Path:
    """A copy of the first build, whose manifest says that nothing was run."""
    folder = tmp_path / "repository"
    shutil.copytree(first_build.options.out, folder)
    manifest = Manifest.load(folder)
    unknown = Verification(rows=0, max_abs_diff=0.0, padding_diff=0.0, ran_on="nowhere", engine_ran=False)
    runtimes = tuple(dataclasses.replace(runtime, verification=unknown) for runtime in manifest.runtimes)
    dataclasses.replace(manifest, runtimes=runtimes).save(folder)
    return folder


def perturb(repository: Path, name: str) -> None:
    """Change weights as a wrong build would, not as a damaged disk: the manifest has the hash of what lies there."""
    path = repository / name / "1" / "weights.bin"
    weights = np.fromfile(path, np.float32)
    path.unlink()
    (weights * np.float32(1.01)).tofile(path)
    manifest = Manifest.load(repository)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    runtimes = tuple(
        dataclasses.replace(r, files=r.files | {f"{name}/1/weights.bin": digest}) if r.name == name else r
        for r in manifest.runtimes
    )
    dataclasses.replace(manifest, runtimes=runtimes).save(repository)


def arlo(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return run(parser.parse_args(["verify", *map(str, arguments)]))


def ran(repository: Path) -> list[bool | None]:
    """Of each runtime whether its engine ran; None: not verified."""
    found = [runtime.verification for runtime in Manifest.load(repository).runtimes]
    return [None if verification is None else verification.engine_ran for verification in found]


def test_a_whole_repository(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert arlo(repository, "--dry-run", "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)["runtimes"]
    assert [(runtime["name"], runtime["exact"]) for runtime in found] == [
        ("tiny_len16", True),
        ("tiny_len32", True),
        ("tiny_dynamic", True),
    ]
    assert "[3/3] verify tiny_dynamic: " in captured.err
    assert ran(repository) == [False, False, False]
    assert arlo(repository, "--runtimes", "tiny_len32") == 0
    assert "tiny_len32" in capsys.readouterr().out
    assert ran(repository) == [False, True, False]
    assert arlo(repository) == 0
    assert ran(repository) == [True, True, True]
    written = Manifest.load(repository).runtimes[0].verification
    assert dataclasses.asdict(written) == found[0]["verification"]  # type: ignore[call-overload]


def test_a_runtime_that_is_not_exact(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    perturb(repository, "tiny_len32")
    assert arlo(repository) == 4
    captured = capsys.readouterr()
    assert "tiny_len32: verify: length 32 differs from the original model: it differs by" in captured.err
    assert "with --tolerance" in captured.err
    assert ran(repository) == [True, None, True]
    assert arlo(repository, "--runtimes", "tiny_len32", "--tolerance", "0.000001") == 4


def test_damaged_files_are_named_and_the_others_verified(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = repository / "tiny_len16" / "1" / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1])
    (repository / "tiny_dynamic" / "config.pbtxt").unlink()
    assert arlo(repository) == 4
    captured = capsys.readouterr()
    assert "tiny_len16: missing or damaged: tiny_len16/1/model.onnx" in captured.err
    assert "tiny_dynamic: missing or damaged: tiny_dynamic/config.pbtxt" in captured.err
    assert ran(repository) == [None, True, None]


def test_other_answers_are_not_believed(repository: Path) -> None:
    (repository / "reference.npz").write_bytes(b"x")
    with pytest.raises(ConfigError, match="not the file that the build wrote"):
        verify_repository(repository)
    (repository / "reference.npz").unlink()
    with pytest.raises(ConfigError, match="is missing"):
        verify_repository(repository)


def test_names_and_emulated_repositories(repository: Path) -> None:
    with pytest.raises(ConfigError, match="there is no runtime other: there are tiny_len16"):
        verify_repository(repository, names=["other"])
    with pytest.raises(ConfigError, match="tolerance must be above 0"):
        verify_repository(repository, tolerance=0.0)
    manifest = Manifest.load(repository)
    emulated = tuple(dataclasses.replace(runtime, engine="emulated") for runtime in manifest.runtimes)
    dataclasses.replace(manifest, runtimes=emulated).save(repository)
    with pytest.raises(ConfigError, match="is emulated"):
        verify_repository(repository)


def test_where_nothing_runs_the_engine(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module.OnnxRuntimeEngine, "cannot_run", lambda _: "there is no NVIDIA GPU driver here")
    events: list[Progress] = []
    with pytest.raises(
        EnvironmentProblem, match="tiny_len16 is an engine of onnxruntime and cannot be run here: there"
    ):
        verify_repository(repository, progress=events.append)
    assert events == []
    assert ran(repository) == [False, False, False]
