"""Triton's config.pbtxt of models that Arlo writes without compiling them, and what it says of the plugin's model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

BACKEND = "arlo"
_BACKEND = re.compile(r'^\s*backend:\s*"([^"]*)"', re.MULTILINE)
_ENGINES = re.compile(r'key:\s*"engines"\s*,?\s*value:?\s*\{\s*string_value:\s*"([^"]*)"')
CPU = "instance_group [ { count: 1 kind: KIND_CPU } ]"


def tensor(name: str, datatype: str, dims: Iterable[int], *, optional: bool = False) -> str:
    """An input or output of a KServe v2 datatype; `dims` without the rows."""
    kind = "STRING" if datatype == "BYTES" else datatype
    more = " optional: true" if optional else ""
    return f"  {{ name: {json.dumps(name)} data_type: TYPE_{kind} dims: [ {', '.join(map(str, dims))} ]{more} }}"


def config_text(
    name: str,
    backend: str,
    max_batch: int,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    parameters: Mapping[str, object],
    more: Sequence[str] = (),
) -> str:
    """The text of the file. `inputs`, `outputs`: see tensor(); `more`: further lines."""
    lines = [
        f"name: {json.dumps(name)}",
        f"backend: {json.dumps(backend)}",
        f"max_batch_size: {max_batch}",
        *("input [", ",\n".join(inputs), "]"),
        *("output [", ",\n".join(outputs), "]"),
        CPU,
        *more,
        *(
            f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(str(value))} }} }}"
            for key, value in parameters.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def engines_inside(folder: Path, static: Sequence[str], others: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the runtimes that the logical model in this folder answers with; empty if there is no such model.

    `static`: used if config.pbtxt names no engines. `others`: it may name these as well; used if `static` is empty.
    """
    try:
        text = (folder / "config.pbtxt").read_text()
    except (OSError, UnicodeDecodeError):
        return ()
    backend = _BACKEND.search(text)
    if backend is None or backend.group(1) != BACKEND:
        return ()
    engines = _ENGINES.search(text)
    wanted = {name for name in engines.group(1).split(",") if name} if engines else set()
    if not wanted:
        return tuple(static or others)
    return tuple(name for name in (*static, *others) if name in wanted)
