"""Models that were not compiled here, as stages of a pipeline: a file describes their tensors, and code or an engine of
any kind computes them. The output is a Triton repository of one model, and its manifest.

Triton accepts any computation; the gateway reads the model's description, and cuts and joins rows by it.
"""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arlo.catalog.manifest import InputTensor, LatencyPoint, Manifest, OutputTensor, Runtime, name_problem
from arlo.catalog.pbtxt import config_text, tensor
from arlo.catalog.structured import check_known, table, values_of
from arlo.catalog.tensors import DATATYPES
from arlo.errors import ConfigError

_TOP = {"model", "input", "output", "parameters"}
_MODEL = {"name", "backend", "files", "counts", "labels", "max_batch", "max_length", "latency", "memory_mb", "version"}


def wrap(file: Path, folder: Path) -> Manifest:
    """Write the repository `folder` of the model that the TOML `file` describes. ConfigError if the file is wrong."""
    try:
        raw = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error})") from None
    try:
        return _write(raw, file.absolute().parent, folder)
    except KeyError as error:
        raise ConfigError(f"{file}: {error.args[0]} is missing") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{file}: {error}") from None


def _write(raw: Mapping[str, Any], base: Path, folder: Path) -> Manifest:
    check_known(raw, _TOP, "the file")
    model = table(raw["model"], "[model]")
    check_known(model, _MODEL, "[model]")
    name, backend = str(model["name"]), str(model.get("backend", "python"))
    if problem := name_problem(name):
        raise ValueError(problem)
    inputs = tuple(_input(each) for each in raw["input"])
    outputs = tuple(_output(each) for each in raw["output"])
    ragged = any(tensor.dims[:1] == (-1,) for tensor in inputs)
    max_batch = int(model.get("max_batch", 1))
    text = "# Written by `arlo compile wrap`.\n" + config_text(
        name,
        backend,
        max_batch,
        inputs=[tensor(each.name, each.datatype, each.dims) for each in inputs],
        outputs=[tensor(each.name, each.datatype, [-1] * each.token_level + list(each.dims)) for each in outputs],
        parameters=raw.get("parameters", {}),
    )
    files = {}
    for called, given in model["files"].items():
        source, target = base / str(given), folder / name / "1" / called
        if not source.is_file() or Path(called).name != called:
            raise ConfigError(f"files: {source} is no file, or {called!r} no name for it")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        files[f"{name}/1/{called}"] = _sha256(target)
    config = folder / name / "config.pbtxt"
    config.write_text(text)
    files[f"{name}/config.pbtxt"] = _sha256(config)
    points = tuple(
        LatencyPoint(length=int(length), batch=int(rows), latency_us=max(round(1000 * ms), 1))
        for length, rows, ms in model.get("latency", ())
    )
    manifest = Manifest(
        model=name,
        task="wrapped",
        source=str(model.get("version", "")),
        tokenizer=None,
        inputs=inputs,
        outputs=outputs,
        runtimes=(
            Runtime(
                name=name,
                max_length=int(model.get("max_length", 1)),
                max_batch=max_batch,
                dynamic=ragged,
                engine=backend,
                precision="",
                device="as its file says" if points else "",
                latency=points,
                backend=backend,
                memory_mb=model.get("memory_mb"),
                files=files,
            ),
        ),
        labels=tuple(map(str, model.get("labels", ()))),
        counts=str(model.get("counts", "")),
    )
    manifest.save(folder)
    return Manifest.load(folder)


def _tensor(kind: type[InputTensor | OutputTensor], raw: Any, where: str, but: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a tensor in the file."""
    values = values_of(kind, raw, where, but=but, required=("name", "datatype", "dims"))
    if values["datatype"] not in DATATYPES:
        raise ConfigError(f"{values['name']}: datatype {values['datatype']!r} is none of {', '.join(DATATYPES)}")
    if any(dim < -1 or dim == 0 for dim in values["dims"]):
        raise ConfigError(f"{values['name']}: dims {list(values['dims'])} need at least one, each above 0, or -1")
    return values


def _input(raw: Any) -> InputTensor:
    hidden = ("role", "optional", "vocabulary", "length_rule")
    return InputTensor(role="tensor", length_rule="constant", **_tensor(InputTensor, raw, "[[input]]", hidden))


def _output(raw: Any) -> OutputTensor:
    return OutputTensor(**{"token_level": False, **_tensor(OutputTensor, raw, "[[output]]", ())})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
