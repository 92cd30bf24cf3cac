"""The contenders: ways to run an encoder. `registry()` lists them; each says itself why it cannot run here."""

from __future__ import annotations

from collections.abc import Sequence

from arlo.errors import ConfigError
from benchmarks.gpu.contenders.base import Contender


def registry() -> list[Contender]:
    """All of them, those that others are compared with last."""
    from benchmarks.gpu.contenders import engines, ort_cuda, torch_contenders, users

    return [*engines.CONTENDERS, *ort_cuda.CONTENDERS, *torch_contenders.CONTENDERS, *users.CONTENDERS]


def chosen(names: Sequence[str]) -> list[Contender]:
    """Those named, whole or by the begin of the name up to a hyphen; all for no names. ConfigError for unknown ones."""
    known = registry()
    if not names:
        return known
    found = {
        contender.name
        for name in names
        for contender in known
        if contender.name == name or contender.name.startswith(f"{name}-")
    }
    for name in names:
        if not any(contender == name or contender.startswith(f"{name}-") for contender in found):
            raise ConfigError(f"contender {name!r} is unknown: use {', '.join(c.name for c in known)}, or a first part")
    return [contender for contender in known if contender.name in found]
