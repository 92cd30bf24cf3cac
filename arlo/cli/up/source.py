"""The model that `arlo up` is given: a folder, an ONNX file, or an installed package that carries one."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import psutil

import arlo
from arlo.compile.cache import Hasher
from arlo.compile.options import DEFAULT_LENGTHS, CompileOptions
from arlo.compile.steps.folder import has_tokenizer, small_files
from arlo.compile.steps.resolve import SourceModel, resolve
from arlo.errors import ConfigError, EnvironmentProblem

EVENLY = 512  # tokens: up to here every 64, beyond each length is twice the one before
SHARE = 0.125  # of the memory that the attention of one row may take
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_KEY_CHARACTERS = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The model to compile."""

    path: Path
    name: str  # that clients use
    lengths: tuple[int, ...]  # maximum lengths, ascending
    key: str  # of all that a build depends on
    graph: Path | None  # the ONNX file that it is compiled from, which needs no PyTorch
    said: str = ""  # the limit on texts, if they could be longer
    beyond_limit: bool = False  # see CompileOptions


def find_source(
    given: str,
    *,
    name: str | None,
    install: bool,
    engine: tuple[str, ...],
    max_length: int | None = None,
    beyond_limit: bool = False,
) -> Source:
    """Find the model and read its kind. engine: the build depends on it as well; max_length, beyond_limit: see
    CompileOptions.

    ConfigError or EnvironmentProblem gives the remedy."""
    path, named = Path(given).expanduser(), None
    if not path.exists():
        if not _PACKAGE.fullmatch(given) or given.startswith("."):
            raise ConfigError(
                f"{given} is not here: give the folder of a Hugging Face model that was downloaded, an ONNX file, or "
                "the name of a Python package that carries a model"
            )
        path, named = _of_package(given, install=install), given
    options = CompileOptions(
        source=path,
        out=Path("unused"),
        name=name or named,
        lengths="auto",
        engine=engine[0],
        max_length=max_length,
        beyond_limit=beyond_limit,
    )
    hasher = Hasher()
    model = resolve(options, hasher)
    longest, said = _longest(model, max_length)
    lengths = lengths_up_to(longest)
    folder = model.tokenizer_folder
    small = small_files(folder, hasher) if has_tokenizer(folder) else {}
    parts = (arlo.__version__, model.content, small, lengths, engine)
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:_KEY_CHARACTERS]
    return Source(path, model.name, lengths, key, model.onnx, said, beyond_limit)


def lengths_up_to(longest: int) -> tuple[int, ...]:
    """Maximum lengths, ascending: few enough to build for a model of long texts."""
    doubled = [EVENLY << more for more in range(1, max(1, (longest // EVENLY).bit_length()))]
    return (*(length for length in (*DEFAULT_LENGTHS, *doubled) if length < longest), longest)


def _longest(model: SourceModel, asked: int | None) -> tuple[int, str]:
    """The longest text to serve, and a remark on it: as asked, else all that the model reads, as far as the attention
    of one row fits this machine, which verifies it."""
    if asked is not None:
        return asked, ""
    if model.max_tokens is None:
        return EVENLY, f"texts of up to {EVENLY} tokens; the model has no limit: --max-length N for longer ones"
    longest = model.max_tokens
    if longest > EVENLY and model.row_length is None:
        room = SHARE * psutil.virtual_memory().total
        while longest > EVENLY and attention_bytes(model, longest) > room:
            longest = max(EVENLY, longest // 2)
    if longest == model.max_tokens:
        return longest, f"texts of up to {longest} tokens, all that the model reads" if longest > EVENLY else ""
    return longest, (
        f"texts of up to {longest} tokens, as fits the memory here; the model reads {model.max_tokens}: "
        "--max-length N for longer ones"
    )


def attention_bytes(model: SourceModel, tokens: int) -> int:
    """The bytes of one row's attention, where every token attends to every other: the scores, and their softmax."""
    return 3 * 4 * model.heads * tokens * tokens


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
    """The only folder of the package that has config.json with weights next to it."""
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
