"""The command line: help, messages, exit codes, lazy imports, documents written from it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from arlo import errors
from arlo.cli import app, main
from arlo.cli.commands import ACTIONS, COMMANDS

SERVE = """\
[model]
repository = "minilm"
slo_ms = 150
[deployment]
allocation = {64 = 1}
"""


@pytest.fixture
def serve_toml(tmp_path: Path) -> Path:
    path = tmp_path / "serve.toml"
    path.write_text(SERVE)
    return path


def test_help_lists_every_command_with_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert command.summary in text
    assert "examples:" in text
    for code, meaning in app.EXIT_CODES:
        assert f"  {code:<4} {meaning}" in text


@pytest.mark.parametrize("command", [command.name for command in COMMANDS + ACTIONS])
def test_every_command_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "example" in text.lower()
    assert max(len(line) for line in text.splitlines()) <= 120


def test_exit_codes_of_the_error_tree_are_documented() -> None:
    documented = {code for code, _ in app.EXIT_CODES}

    def walk(kind: type[errors.ArloError]) -> set[int]:
        return {kind.exit_code}.union(*(walk(child) for child in kind.__subclasses__()))

    assert walk(errors.ArloError) <= documented


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serv", "x.toml"], "unknown command 'serv': did you mean 'serve'?"),
        (["zzzzzz"], "unknown command 'zzzzzz': `arlo --help` lists the commands"),
        (["top", "--jsn"], "arlo top: error: unknown argument: --jsn"),
        (["compile", "inspect", "--jsn", "x"], "arlo compile inspect: error: unknown argument: --jsn"),
        (["inspect", "x"], "unknown command 'inspect': did you mean 'compile inspect'?"),
        (["top", "x.toml", "--admin", "h:1"], "give CONFIG.toml or --admin, not both"),
        (["top", "--once", "--interval", "0"], "--interval must be at least 0.1, at most 60, not 0"),
        (["config", "check", "no.toml"], "no.toml does not exist"),
        (["serve", "no.toml"], "no.toml does not exist"),
        (["serve", "gateway", "no.toml"], "no.toml does not exist"),
    ],
)
def test_wrong_command_lines_exit_2_with_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_no_command_shows_help_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


def test_debug_shows_the_trace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARLO_DEBUG", "1")
    assert main(["config", "check", "no.toml"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_exits_130_without_a_word(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("arlo.cli.version.run", interrupted)
    assert main(["version"]) == 130
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_config_show_and_check(serve_toml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", str(serve_toml), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["model"] == {
        "repository": str(serve_toml.parent / "minilm"),
        "slo_ms": 150,
        "default_timeout_ms": 1500,
        "share": 1.0,
    }
    assert shown["workers"]["count"] == 1
    assert shown["dispatch"]["lambda"] == 0.85
    assert main(["config", "check", str(serve_toml), "--keys-only", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(serve_toml), "ok": True, "workers": 1}
    assert main(["config", "check", str(serve_toml)]) == 2
    assert "build the repository with `arlo compile`" in capsys.readouterr().err


def test_version_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["arlo"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from arlo.cli import main; main(['--help']); "
        "print([m for m in ('grpc', 'numpy', 'rich', 'torch', 'google.protobuf') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_output_into_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m arlo.cli config show --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_documents_are_what_the_program_says() -> None:
    from arlo.cli.docs import pages

    docs = Path(__file__).parents[3] / "docs"
    for name, text in pages().items():
        assert (docs / name).read_text() == text, f"docs/{name} differs from the program: run `make docs`"
