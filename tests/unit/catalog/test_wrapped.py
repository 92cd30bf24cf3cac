"""`arlo compile wrap`: what a file says becomes a repository that Triton and the gateway read alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from arlo.catalog.files import check_files
from arlo.catalog.manifest import Manifest
from arlo.catalog.wrapped import wrap
from arlo.errors import ConfigError

FILE = """\
[model]
name = "cut"
files = {"model.py" = "code.py"}
max_batch = 4
max_length = 32
counts = "count"
labels = ["a", "b"]
latency = [[32, 1, 1.5], [32, 4, 3]]
[parameters]
side = "640"
[[input]]
name = "strip"
datatype = "UINT8"
dims = [-1, 3]
pad_value = 9
[[output]]
name = "count"
datatype = "INT32"
dims = [1]
on_request = true
[[output]]
name = "parts"
datatype = "BYTES"
dims = [1]
of_children = true
"""


def written(folder: Path, text: str = FILE) -> Manifest:
    (folder / "code.py").write_text("pass\n")
    (folder / "cut.toml").write_text(text)
    return wrap(folder / "cut.toml", folder / "out")


def test_a_repository(tmp_path: Path) -> None:
    manifest = written(tmp_path)
    assert manifest == Manifest.load(tmp_path / "out")
    check_files(tmp_path / "out", manifest)
    (strip,) = manifest.inputs
    assert (strip.role, strip.dims, strip.pad_value) == ("tensor", (-1, 3), 9)
    assert manifest.counts == "count"
    assert [output.of_children for output in manifest.outputs] == [False, True]
    (runtime,) = manifest.runtimes
    assert (runtime.dynamic, runtime.max_length, runtime.max_batch) == (True, 32, 4)
    assert runtime.latency_ns(1) == 1_500_000
    config = (tmp_path / "out" / "cut" / "config.pbtxt").read_text()
    assert '{ name: "strip" data_type: TYPE_UINT8 dims: [ -1, 3 ] }' in config
    assert '{ name: "parts" data_type: TYPE_STRING dims: [ 1 ] }' in config
    assert 'parameters { key: "side" value { string_value: "640" } }' in config
    assert (tmp_path / "out" / "cut" / "1" / "model.py").is_file()


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ('counts = "count"', "", "outputs of children need one that counts them"),
        ('datatype = "UINT8"', 'datatype = "FP8"', "none of BOOL"),
        ("dims = [-1, 3]", "dims = [0]", "at least one, each above 0, or -1"),
        ("dims = [-1, 3]", "shape = [3]", "'shape' is not a key here"),
        ('"code.py"', '"none.py"', "is no file"),
        ('"model.py" =', '"../model.py" =', "no name for it"),
        ('name = "cut"', "", "name is missing"),
        ('name = "cut"', 'name = "../../x"', "cannot name a model"),
        ("[model]", "[model", "cannot be read"),
    ],
)
def test_what_is_wrong(tmp_path: Path, before: str, after: str, what: str) -> None:
    assert before in FILE
    with pytest.raises(ConfigError, match=re.escape(what)):
        written(tmp_path, FILE.replace(before, after, 1))
    assert not (tmp_path.parent / "x").exists()
