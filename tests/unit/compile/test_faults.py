"""Builds that fail, are killed or meet somebody else's files: nothing that looks whole, and the next run goes on."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import arlo.compile.engines.interface
import arlo.compile.engines.onnxruntime
import arlo.compile.steps.repository
import arlo.compile.steps.specialise
import arlo.compile.steps.verify
from arlo.catalog.manifest import Manifest
from arlo.compile import CompileOptions, Progress, compile_model
from arlo.compile.spec import RuntimeSpec
from arlo.compile.verify.answers import pad
from arlo.errors import CompileError, ConfigError
from tests.fakes.tiny_model import DIM

# A build for each place to be killed in, in a process that has imported what takes most of the time once.
BUILDS = """
import json, os, signal, sys, warnings
from pathlib import Path
import torch
from transformers import BertModel
from arlo.compile import CompileOptions, compile_model
from arlo.compile.steps import export
from arlo.compile.steps import repository

def build(where):
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def progress(event):
        print(event.step, event.title, event.done, event.cached, flush=True)
        if where == "verify" and (event.step, event.title, event.done) == ("verify", "length 32", False):
            die()

    if where == "export":
        export._check_graph = die  # the graph is written, the entry is not
    if where == "repository":
        writer, count = repository.RepositoryWriter.model, []
        def model(*args):
            count.append(1)
            return die() if len(count) == 2 else writer(*args)
        repository.RepositoryWriter.model = model
    compile_model(CompileOptions(source=Path(source), out=Path(out), lengths=(16, 32), cache=Path(cache)), progress)

source, out, cache, logs, *places = sys.argv[1:]
for where in places:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads, which only wait here
        child = os.fork()
    if child == 0:
        for fd, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{logs}/{where}.{name}", os.O_WRONLY | os.O_CREAT, 0o600), fd)
        try:
            build(where)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}")
        sys.stderr.flush()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"where": where, "code": code, "built": Path(out).exists()}))
"""


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.long
def test_killed_at_any_point_and_resumed(tiny: Path, tmp_path: Path) -> None:
    out, cache = tmp_path / "place" / "out", tmp_path / "cache"
    places = {"export": "tokenizer", "repository": "verify", "nowhere": ""}  # and the last step finished before
    command = [sys.executable, "-P", "-W", "error", "-c", BUILDS, *map(str, (tiny, out, cache, tmp_path)), *places]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    kept: set[str] = set()  # steps that an earlier, killed build finished
    for build, (where, finished) in zip(map(json.loads, done.stdout.splitlines()), places.items(), strict=True):
        # No warning of torch, transformers or the exporter gets through.
        assert (tmp_path / f"{where}.err").read_text() == "", where
        last = where == "nowhere"
        assert build == {"where": where, "code": 0 if last else -signal.SIGKILL, "built": last}
        lines = (tmp_path / f"{where}.out").read_text().splitlines()
        assert kept <= {line.split()[0] for line in lines if line.endswith("True True")}
        kept.add(finished)
    fresh = [line for line in lines if line.endswith("True False")]
    assert [line.split()[0] for line in fresh] == ["resolve", "repository"]
    assert leftovers(out.parent) == ["out"]
    assert not list(cache.glob("compile/*/*.tmp-*"))
    assert [runtime.max_length for runtime in Manifest.load(out).runtimes] == [16, 32, 32]


def test_a_build_that_differs_names_the_length(tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that counts padding is exact for full rows only: verification must find the padded ones."""

    def padding_counts(inputs: Any, rows: Any, width: int, **filling: Any) -> dict[str, NDArray[np.int64]]:
        tensors = pad(inputs, rows, width, **filling)
        return tensors | {"attention_mask": np.ones_like(tensors["attention_mask"])}

    monkeypatch.setattr(arlo.compile.steps.verify, "pad", padding_counts)
    with pytest.raises(CompileError, match=r"verify: length 24 differs from the original model: .*more than 0\.0001"):
        compile_model(dataclasses.replace(tiny_options, lengths=(16, 24, 32), jobs=1))
    assert leftovers(tiny_options.out.parent) == ["cache"]


def test_answers_that_are_no_numbers_are_refused(tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_numbers(self: object, inputs: dict[str, NDArray[np.int64]], outputs: list[str]) -> dict[str, Any]:
        rows, tokens = inputs["input_ids"].shape
        return {"sentence_embedding": np.full((rows, DIM), np.nan), "last_hidden_state": np.zeros((rows, tokens, DIM))}

    monkeypatch.setattr(arlo.compile.engines.interface.SessionRunner, "run", not_numbers)
    with pytest.raises(CompileError, match="length 24 differs from the original model: it differs by nan"):
        compile_model(dataclasses.replace(tiny_options, lengths=(24,), jobs=1))


def test_a_failed_or_interrupted_build_leaves_the_earlier_one(tiny_options: CompileOptions) -> None:
    options = dataclasses.replace(tiny_options, lengths=(16,), dynamic=False)
    compile_model(options)
    before = (options.out / "arlo.json").read_text()
    with pytest.raises(CompileError, match="verify: length 16"):
        compile_model(dataclasses.replace(options, tolerance=1e-12))

    def interrupt(event: Progress) -> None:
        if event.step == "repository":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_model(options, interrupt)
    assert (options.out / "arlo.json").read_text() == before
    assert leftovers(options.out.parent) == ["cache", "out"]


@pytest.mark.parametrize("exchange", [True, False])
def test_an_earlier_build_is_replaced_whole(
    tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    """Also where the file system cannot exchange two folders."""
    if not exchange:
        monkeypatch.setattr(arlo.compile.steps.repository.ctypes, "CDLL", lambda *_, **__: object())
    compile_model(tiny_options)
    compile_model(dataclasses.replace(tiny_options, lengths=(32,), dynamic=False))
    assert leftovers(tiny_options.out) == ["arlo.json", "reference.npz", "tiny_len32", "tokenizer.json"]
    assert leftovers(tiny_options.out.parent) == ["cache", "out"]


def test_other_peoples_folders_are_left_alone(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("1")
    with pytest.raises(ConfigError, match="not empty and no earlier build"):
        compile_model(CompileOptions(source=tiny, out=tmp_path / "thesis", lengths=(16,), cache=tmp_path / "cache"))
    assert leftovers(tmp_path / "thesis") == ["chapter"]
    with pytest.raises(ConfigError, match="is a file"):
        compile_model(CompileOptions(source=tiny, out=tmp_path / "thesis" / "chapter", cache=tmp_path / "cache"))
    with pytest.raises(ConfigError, match="cannot be written"):
        compile_model(
            CompileOptions(source=tiny, out=tmp_path / "thesis" / "chapter" / "out", cache=tmp_path / "cache")
        )
    with pytest.raises(CompileError, match="set ARLO_CACHE"):
        compile_model(
            CompileOptions(source=tiny, out=tmp_path / "out", lengths=(16,), cache=tmp_path / "thesis" / "chapter")
        )
    assert leftovers(tmp_path) == ["thesis"]


def test_leftovers_of_dead_builds_are_removed_and_of_living_ones_are_not(
    tiny_options: CompileOptions, tmp_path: Path
) -> None:
    (tmp_path / ".out.building-dead" / "tiny_len16").mkdir(parents=True)
    with arlo.compile.steps.repository.staging(tiny_options.out) as living:
        compile_model(tiny_options)
        assert leftovers(tmp_path) == sorted([living.name, "cache", "out"])


def test_too_little_disk_is_said_before_the_work(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10 << 30, 10 << 30, 5 << 20))
    events: list[Progress] = []
    options = CompileOptions(source=tiny, out=tmp_path / "out", lengths=(16,), cache=tmp_path / "cache")
    with pytest.raises(CompileError, match=r"5 MB free and the build needs \d+ MB: free some space"):
        compile_model(options, events.append)
    assert {event.step for event in events} == {"resolve"}
    assert leftovers(tmp_path) == ["cache"]


def test_a_full_disk_is_said_plainly(tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arlo.compile.steps.specialise, "specialise", full)
    with pytest.raises(CompileError, match="specialise: the disk is full"):
        compile_model(dataclasses.replace(tiny_options, lengths=(16, 24), jobs=1))  # in this process
    assert leftovers(tiny_options.out.parent) == ["cache"]
    assert not list(tiny_options.cache_root.glob("compile/*/*.tmp-*"))


@pytest.mark.parametrize("refusal", ["link", "engine"])
def test_where_hard_links_do_not_work_weights_are_copied(
    tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """A file system without links; an ONNX Runtime that refuses files with several links, as onnx itself does."""
    if refusal == "link":

        def no_link(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", no_link)
    else:
        opened = arlo.compile.engines.onnxruntime._session

        def picky(folder: Path, spec: RuntimeSpec, **how: Any) -> Any:
            if (folder / "weights.bin").stat().st_nlink > 1:
                raise RuntimeError("it has multiple hard links")
            return opened(folder, spec, **how)

        monkeypatch.setattr(arlo.compile.engines.onnxruntime, "_session", picky)
    shutil.rmtree(tiny_options.cache_root / "compile" / "build")
    manifest = compile_model(dataclasses.replace(tiny_options, jobs=1))  # in this process
    weights = [tiny_options.out / runtime.name / "1" / "weights.bin" for runtime in manifest.runtimes]
    assert [path.stat().st_nlink for path in weights] == [1, 1, 1]
