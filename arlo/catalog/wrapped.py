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
from arlo.catalog.tensors import DATATYPES
from arlo.errors import ConfigError

_TOP = {"model", "input", "output", "parameters"}
_MODEL = {"name", "backend", "files", "counts", "labels", "max_batch", "max_length", "latency", "memory_mb", "version"}
_INPUT = {"name", "datatype", "dims", "pad_value"}
_OUTPUT = {"name", "datatype", "dims", "token_level", "on_request", "of_children"}


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
    _known(raw, _TOP, "the file")
    model = raw["model"]
    _known(model, _MODEL, "[model]")
    name, backend = str(model["name"]), str(model.get("backend", "python"))
    if problem := name_problem(name):
        raise ValueError(problem)
    inputs = tuple(_input(each) for each in raw["input"])
    outputs = tuple(_output(each) for each in raw["output"])
    ragged = any(tensor.dims[:1] == (-1,) for tensor in inputs)
    max_batch = int(model.get("max_batch", 1))
    text = _config(model, inputs, outputs, raw.get("parameters", {}))
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


def _input(raw: Mapping[str, Any]) -> InputTensor:
    _known(raw, _INPUT, "[[input]]")
    return InputTensor(
        name=str(raw["name"]),
        datatype=_datatype(raw),
        role="tensor",
        pad_value=int(raw.get("pad_value", 0)),
        dims=_dims(raw),
        length_rule="constant",
    )


def _output(raw: Mapping[str, Any]) -> OutputTensor:
    _known(raw, _OUTPUT, "[[output]]")
    flags = {key: bool(raw.get(key, False)) for key in ("token_level", "on_request", "of_children")}
    return OutputTensor(name=str(raw["name"]), datatype=_datatype(raw), dims=_dims(raw), **flags)


def _datatype(raw: Mapping[str, Any]) -> str:
    given = str(raw["datatype"])
    if given not in DATATYPES:
        raise ConfigError(f"{raw['name']}: datatype {given!r} is none of {', '.join(DATATYPES)}")
    return given


def _dims(raw: Mapping[str, Any]) -> tuple[int, ...]:
    dims = tuple(int(dim) for dim in raw["dims"])
    if not dims or any(dim < -1 or dim == 0 for dim in dims):
        raise ConfigError(f"{raw['name']}: dims {list(dims)} need at least one, each above 0, or -1")
    return dims


def _config(
    model: Mapping[str, Any],
    inputs: tuple[InputTensor, ...],
    outputs: tuple[OutputTensor, ...],
    parameters: Mapping[str, Any],
) -> str:
    def tensor(each: InputTensor | OutputTensor) -> str:
        kind = "STRING" if each.datatype == "BYTES" else each.datatype
        step = "-1, " if isinstance(each, OutputTensor) and each.token_level else ""
        return f'  {{ name: "{each.name}" data_type: TYPE_{kind} dims: [ {step}{", ".join(map(str, each.dims))} ] }}'

    name, backend, rows = model["name"], model.get("backend", "python"), int(model.get("max_batch", 1))
    lines = ["# Written by `arlo compile wrap`.", f'name: "{name}"', f'backend: "{backend}"', f"max_batch_size: {rows}"]
    lines += ["input [", ",\n".join(map(tensor, inputs)), "]", "output [", ",\n".join(map(tensor, outputs)), "]"]
    lines.append("instance_group [ { count: 1 kind: KIND_CPU } ]")
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    return "\n".join(lines) + "\n"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _known(raw: Any, known: set[str], where: str) -> None:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{where} must be a table")
    for key in raw:
        if key not in known:
            raise ConfigError(f"{where}: {key!r} is not a key here; known: {', '.join(sorted(known))}")
