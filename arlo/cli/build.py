"""Compile the model that a configuration names, for `arlo serve` (if it is missing) and `make demo`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from arlo.errors import ConfigError

if TYPE_CHECKING:
    from arlo.catalog.manifest import Manifest
    from arlo.config import Config


def is_built(config: Config) -> bool:
    """Whether the repository exists."""
    from arlo.catalog.manifest import FILE_NAME

    return (config.model.repository / FILE_NAME).is_file()


def build(config: Config, stream: TextIO, *, beyond_limit: bool = False) -> Manifest:
    """Compile model.source into model.repository: the lengths of the allocation and the default ones below them, or the
    default ones alone, and the dynamic runtime.

    beyond_limit: see CompileOptions. Progress goes to `stream`. Steps that were done before are taken from the cache.
    """
    from arlo.compile import DEFAULT_LENGTHS, CompileOptions, compile_model
    from arlo.compile.tools.display import display

    source = config.model.source
    if source is None:
        raise ConfigError("model.source is missing: name the model to compile, or run `arlo compile` yourself")

    allocated = set(config.deployment.allocation)

    options = CompileOptions(
        # A relative path is taken from the configuration's folder; a missing one can be the demo model's name.
        source=source if source.exists() else Path(source.name),
        out=config.model.repository,
        name=config.model.name,
        lengths=tuple(sorted({n for n in DEFAULT_LENGTHS if n < max(allocated)} | allocated)) if allocated else None,
        beyond_limit=beyond_limit,
        dynamic=True,  # the recommendation compares the lengths with it
    )
    with display(stream) as show:
        return compile_model(options, show)
