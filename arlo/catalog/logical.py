"""The Triton model that the plugin answers as: one name for all runtimes of a repository, any length.

Its folder lies next to those of the runtimes; the backend `arlo` (src/plugins/scheduler) reads the manifest there.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from arlo.catalog.manifest import Manifest
from arlo.catalog.pbtxt import BACKEND, config_text, tensor
from arlo.errors import ConfigError

LIBRARY = "libtriton_arlo.so"
_HEADER = "# Written by Arlo; docs/plugin.md describes the parameters.\n"


def logical_config(manifest: Manifest, *, max_rows: int = 256, **parameters: object) -> str:
    """The text of config.pbtxt. Among the inputs, only the token ids and those without a role are required. `max_rows`:
    of a request; `parameters`: those of docs/plugin.md, instead of their defaults."""
    # Its one instance accepts requests and returns at once; the rows wait inside.
    return _HEADER + config_text(
        manifest.model,
        BACKEND,
        max_rows,
        inputs=[
            tensor(each.name, each.datatype, [-1], optional=each.optional or each.role == "mask")
            for each in manifest.inputs
        ],
        outputs=[
            tensor(each.name, each.datatype, [-1] * each.token_level + list(each.dims))
            for each in manifest.outputs
            if not each.on_request
        ],
        parameters=parameters,
    )


def write_logical_model(
    repository: Path,
    manifest: Manifest,
    *,
    library: Path | None = None,
    engines: Sequence[str] = (),
    max_rows: int = 256,
    **parameters: object,
) -> Path:
    """Write the logical model's folder into a repository, and `library` (the backend) into it; returns the folder.

    `engines`: names of runtimes to answer with, by default all static ones; for the others see logical_config().
    ConfigError if a runtime has the name of the model, or an engine is no runtime.
    """
    if any(each.role == "tensor" for each in manifest.inputs):
        raise ConfigError("the backend inside Triton takes token ids only: serve tensors with `arlo serve`")
    names = {runtime.name for runtime in manifest.runtimes}
    if manifest.model in names:
        raise ConfigError(f"a runtime is called {manifest.model}, as the model that it is to answer for: rename one")
    if unknown := sorted(set(engines) - names):
        raise ConfigError(f"there is no runtime {unknown[0]}: there are {', '.join(sorted(names))}")
    if engines:
        parameters["engines"] = ",".join(engines)
    folder = repository / manifest.model
    (folder / "1").mkdir(parents=True, exist_ok=True)
    # Git and object stores keep no empty folders, and Triton wants a version.
    (folder / "1" / "README").write_text("The plugin needs no files here; Triton needs the folder.\n")
    (folder / "config.pbtxt").write_text(logical_config(manifest, max_rows=max_rows, **parameters))
    if library is not None:
        # A running server may have the old file mapped, so this replaces the file instead of its content.
        fresh = folder / f".{LIBRARY}"
        shutil.copyfile(library, fresh)
        fresh.chmod(0o755)
        fresh.replace(folder / LIBRARY)
    return folder
