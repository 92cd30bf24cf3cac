"""`arlo compile`: what it prints where, and its exit codes."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from arlo.catalog.manifest import Manifest
from arlo.cli import main
from arlo.compile import CompileOptions, Progress
from arlo.compile.repository.inspect import check_files
from arlo.compile.tools import compile as cli
from arlo.compile.tools.display import display
from tests.fakes.tiny_model import write_shell


def arguments(options: CompileOptions, *more: str) -> list[str]:
    return ["compile", str(options.source), "--out", str(options.out), "--lengths", "16:32:16", "--dynamic", *more]


@pytest.fixture
def cached(tiny_options: CompileOptions, monkeypatch: pytest.MonkeyPatch) -> CompileOptions:
    monkeypatch.setenv("ARLO_CACHE", str(tiny_options.cache))
    return tiny_options


def test_a_table_on_standard_output_and_steps_on_standard_error(
    cached: CompileOptions, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(cached)) == 0
    out, err = capsys.readouterr()
    assert all(name in out for name in ("tiny_len16", "tiny_len32", "tiny_dynamic", "from the cache"))
    lines = err.splitlines()
    assert lines[0].startswith("[ 1/18] resolve ")
    assert "verify length 16: cached, largest difference" in err
    assert [line for line in lines if line.startswith("[18/18] repository ")]


def test_warnings_come_once_at_the_end(
    cached: CompileOptions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arlo.compile.pipeline.busy_warning", lambda _: "the machine was busy")
    assert main(arguments(cached)) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "arlo: warning: the machine was busy (length 16, length 32, dynamic up to 32)"


def test_json(cached: CompileOptions, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(cached, "--name", "other", "--json")) == 0
    summary = json.loads(capsys.readouterr().out)
    manifest = Manifest.load(cached.out)
    assert (summary["model"], summary["repository"]) == ("other", str(cached.out))
    assert [r["name"] for r in summary["runtimes"]] == [r.name for r in manifest.runtimes]
    assert summary["runtimes"][-1]["latency"][-1]["latency_us"] == manifest.runtimes[-1].latency[-1].latency_us
    assert summary["cached_steps"] == 16


@pytest.mark.parametrize("signal", [["--importance"], ["--importance", "last:2"], ["--confidence"]])
def test_signals_are_refused_with_the_plugin(
    cached: CompileOptions, signal: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(cached, "--plugin", *signal)) == 2
    assert f"--plugin and {signal[0]} do not go together" in capsys.readouterr().err
    assert not cached.out.exists()


def test_the_plugin_is_written_beside_what_it_answers_for(
    cached: CompileOptions, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    share = tmp_path / "share"
    (share / "backends" / "arlo").mkdir(parents=True)
    monkeypatch.setenv("ARLO_SHARE_DIR", str(share))
    assert main(arguments(cached, "--plugin")) == 3  # before anything is built
    assert "libtriton_arlo.so is missing" in capsys.readouterr().err
    (share / "backends" / "arlo" / "libtriton_arlo.so").write_bytes(b"the backend")
    assert main(arguments(cached, "--plugin")) == 0
    assert (cached.out / "tiny" / "libtriton_arlo.so").read_bytes() == b"the backend"
    assert 'backend: "arlo"' in (cached.out / "tiny" / "config.pbtxt").read_text()
    assert check_files(cached.out, Manifest.load(cached.out)) == []
    assert main(arguments(cached)) == 0  # built again, it is replaced
    assert not (cached.out / "tiny").exists()


def test_wrong_input_is_one_line_and_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["compile", str(tmp_path / "absent"), "--out", out]) == 2
    assert main(["compile", str(tmp_path), "--out", out, "--lengths", "128,64"]) == 2
    gpt = write_shell(tmp_path / "gpt", model_type="gpt2", architectures=["GPT2LMHeadModel"])
    assert main(["compile", str(gpt), "--out", out, "--no-cache"]) == 2
    assert main(["compile", str(gpt)]) == 2
    broken = write_shell(tmp_path / "broken", hidden_size=32, num_attention_heads=2)
    assert main(["compile", str(broken), "--out", out, "--lengths", "16", "--no-cache"]) == 4
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert [error.partition("error: ")[2][:30] for error in errors] == [
        f"{tmp_path / 'absent'} is not a folder"[:30],
        "lengths must ascend, but 128 c",
        f"{gpt} is a decoder-only"[:30],
        "the following arguments are re",
        f"export: {broken} has no weights"[:30],
    ]
    assert not Path(out).exists()


def test_defaults_are_those_of_the_options() -> None:
    parser = cli.add_parser(argparse.ArgumentParser().add_subparsers())
    args = parser.parse_args(["model", "--out", "out"])
    assert cli.options_of(args) == CompileOptions(source=Path("model"), out=Path("out"))
    args = parser.parse_args(
        ["model", "--out", "out", "--importance", "--no-cache", "--compute-capabilities", "sm86, 8.6"]
    )
    options = cli.options_of(args)
    assert (options.importance, options.use_cache, options.compute_capabilities) == ("all", False, ("SM86", "8.6"))


def test_a_batch_is_a_number_or_auto(capsys: pytest.CaptureFixture[str]) -> None:
    parser = cli.add_parser(argparse.ArgumentParser().add_subparsers())
    read = [parser.parse_args(["model", "--out", "out", "--max-batch", text]).max_batch for text in ("8", "auto")]
    assert read == [8, "auto"]
    with pytest.raises(SystemExit):
        parser.parse_args(["model", "--out", "out", "--max-batch", "many"])
    assert "'many' is neither a number of rows nor auto" in capsys.readouterr().err


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    event: dict[str, Any] = {"step": "verify", "title": "length 16", "total": 8}
    with display(terminal) as show:
        show(Progress(number=3, **event))
        show(Progress(number=4, done=True, **event))
        show(Progress(number=4, step="latency", title="length 32", total=8))
    assert "latency length 32" in terminal.getvalue()
    assert "4/8" in terminal.getvalue()
