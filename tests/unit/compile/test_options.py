"""Options are checked before anything heavy starts, and say what to change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from arlo.compile import DEFAULT_LENGTHS, CompileOptions, parse_lengths
from arlo.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("64,128", (64, 128)),
        ("64:512:64", DEFAULT_LENGTHS),
        ("16, 32:96:32 ,128", (16, 32, 64, 96, 128)),
        ("64:100:30", (64, 94)),
        ("7", (7,)),
    ],
)
def test_lengths_are_read(text: str, lengths: tuple[int, ...]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("64,", "cannot be read"),
        ("64;128", "cannot be read"),
        ("64:128", "first:last:step"),
        ("64:512:0", "step must be 1 or more"),
        ("512:64:64", "last not below the first"),
        ("128,64", "sort them"),
        ("64,64", "named twice"),
        ("0,64", "1 token or more"),
        ("-64", "cannot be read"),
        ("²", "cannot be read"),
    ],
)
def test_bad_lengths_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_lengths(text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lengths": ()}, "at least one"),
        ({"lengths": (32, 16)}, "sort them"),
        ({"name": "a/b"}, "cannot name a model"),
        ({"name": ""}, "cannot name a model"),
        ({"task": "translation"}, 'must be "auto" or "embedding"'),
        ({"max_batch": 0}, "max_batch must be at least 1"),
        ({"max_batch": 2**16 + 1}, "max_batch must be at least 1, at most 65,536"),
        ({"lengths": (2**20 + 1,)}, "lengths must be 1048576 tokens or fewer"),
        ({"memory_mb": 100}, "memory_mb goes with max_batch = auto"),
        ({"max_batch": "auto", "memory_mb": 0}, "memory_mb must be at least 1"),
        ({"latency_profile": Path("profile")}, "goes with lengths = auto or max_batch = auto"),
        ({"batcher": True}, "batcher goes with max_batch above 1"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"tolerance": 0.0}, "tolerance must be above 0"),
        ({"tolerance": float("nan")}, "tolerance must be above 0"),
    ],
)
def test_bad_options_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        CompileOptions(**({"source": Path("model"), "out": Path("out")} | change))


def test_cache_root(monkeypatch: pytest.MonkeyPatch) -> None:
    options = CompileOptions(source=Path("model"), out=Path("out"))
    monkeypatch.setenv("ARLO_CACHE", "named")
    assert options.cache_root == Path("named")
    monkeypatch.delenv("ARLO_CACHE")
    monkeypatch.setenv("HOME", "/nowhere")
    assert options.cache_root == Path("/nowhere/.cache/arlo")
    assert CompileOptions(source=Path("model"), out=Path("out"), cache=Path("given")).cache_root == Path("given")


def test_importing_is_cheap() -> None:
    code = (
        "import sys, arlo.compile.tools.compile;"
        "print([m for m in ('torch', 'onnx', 'onnxruntime', 'transformers') if m in sys.modules])"
    )
    # -P: the top-level folders of a checkout must not stand in for the installed package.
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
