"""Whether a repository has a logical model of the plugin (docs/plugin.md), and the runtimes that answer for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

BACKEND = "arlo"
_BACKEND = re.compile(r'^\s*backend:\s*"([^"]*)"', re.MULTILINE)
_ENGINES = re.compile(r'key:\s*"engines"\s*,?\s*value:?\s*\{\s*string_value:\s*"([^"]*)"')


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
