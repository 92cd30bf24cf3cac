"""The model that `arlo up` is given: a folder, an ONNX file, or an installed package that carries one."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import arlo
from arlo.compile.cache import Hasher
from arlo.compile.options import CompileOptions
from arlo.compile.steps.resolve import resolve
from arlo.errors import ConfigError, EnvironmentProblem

STEP = 64  # tokens from one maximum length to the next
LONGEST = 512
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_KEY_CHARACTERS = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """What is to be compiled."""

    path: Path
    name: str  # that clients ask for
    lengths: tuple[int, ...]  # maximum lengths, ascending
    key: str  # of all that a build depends on
    graph: Path | None  # the ONNX file that it is compiled from, which needs no PyTorch


def find_source(given: str, *, name: str | None, install: bool, engine: tuple[str, ...]) -> Source:
    """Find the model and read what it is. engine: what else the build depends on.

    ConfigError or EnvironmentProblem says what to do."""
    path, named = Path(given).expanduser(), None
    if not path.exists():
        if not _PACKAGE.fullmatch(given) or given.startswith("."):
            raise ConfigError(
                f"{given} is not here: give the folder of a Hugging Face model that was downloaded, an ONNX file, or "
                "the name of a Python package that carries a model"
            )
        path, named = _of_package(given, install=install), given
    options = CompileOptions(source=path, out=Path("unused"), name=name or named, lengths="auto", engine=engine[0])
    hasher = Hasher()
    model = resolve(options, hasher)
    longest = min(LONGEST, model.max_tokens or LONGEST)
    lengths = (*range(STEP, longest, STEP), longest)
    files = sorted({model.tokenizer_folder, *([model.folder] if model.folder.is_dir() else [])})
    small = {
        str(each.relative_to(folder)): hasher.file(each)
        for folder in files
        for each in sorted(folder.glob("*"))
        if each.is_file() and each.suffix in (".json", ".txt", ".model")
    }
    parts = (arlo.__version__, model.name, model.hashes, small, lengths, engine)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:_KEY_CHARACTERS]
    return Source(path, model.name, lengths, key, model.onnx)


def _of_package(name: str, *, install: bool) -> Path:
    """The model folder in an installed package; with `install` pip gets the package first."""
    try:
        return _folder_in(name)
    except importlib.metadata.PackageNotFoundError:
        pass
    if not install:
        raise EnvironmentProblem(
            f"{name} is neither a folder here nor an installed package: give the path of a model folder, or get the "
            f"package first with `pip install {name}` (or `arlo up {name} --install`)"
        )
    print(f"arlo: pip install {name}", file=sys.stderr, flush=True)
    done = subprocess.run((sys.executable, "-m", "pip", "install", "--quiet", name), check=False)
    if done.returncode != 0:
        raise EnvironmentProblem(f"pip could not install {name}: see above")
    importlib.invalidate_caches()
    try:
        return _folder_in(name)
    except importlib.metadata.PackageNotFoundError:
        raise EnvironmentProblem(f"{name} was installed, but is not found: is pip that of {sys.executable}?") from None


def _folder_in(name: str) -> Path:
    """The one folder of the package that has config.json and weights beside it."""
    distribution = importlib.metadata.distribution(name)
    found = []
    for file in distribution.files or ():
        if file.name == "config.json":
            folder = Path(str(distribution.locate_file(file))).parent
            if any(map(any, map(folder.glob, ("*.safetensors", "pytorch_model*.bin", "onnx/*.onnx", "*.onnx")))):
                found.append(folder)
    if len(found) == 1:
        return found[0]
    what = "no folder with config.json and weights" if not found else f"{len(found)} models"
    raise ConfigError(f"the package {name} has {what}: give the path of a model folder instead")
