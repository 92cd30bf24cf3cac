"""The Triton model that the plugin answers as: one name for all runtimes of a repository, any length.

Its folder lies next to those of the runtimes; the backend `arlo` (src/plugins/scheduler) reads the manifest there.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

from arlo.catalog.inside import BACKEND
from arlo.catalog.manifest import InputTensor, Manifest, OutputTensor
from arlo.errors import ConfigError

LIBRARY = "libtriton_arlo.so"
_HEADER = "# Written by Arlo; docs/plugin.md describes the parameters.\n"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogicalOptions:
    """The settings of the logical model's config.pbtxt, tensors excluded; None leaves the plugin's default."""

    max_rows: int = 256  # per request
    slo_ms: int | None = None
    timeout_ms: int | None = None
    policy: str | None = None
    batching: str | None = None
    inflight_limit: int | None = None
    max_queued: int | None = None
    max_attempts: int | None = None
    unavailable_grace_ms: int | None = None
    engines: tuple[str, ...] = ()  # names of runtimes; empty: all static ones

    def parameters(self) -> dict[str, str]:
        """The parameters as config.pbtxt holds them: all values are text."""
        values = {
            field.name: str(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name not in ("max_rows", "engines") and getattr(self, field.name) is not None
        }
        return values | ({"engines": ",".join(self.engines)} if self.engines else {})


def logical_config(manifest: Manifest, options: LogicalOptions) -> str:
    """The text of config.pbtxt. Among the inputs, only the token ids and those without a role are required."""
    lines = [
        f"name: {json.dumps(manifest.model)}",
        f'backend: "{BACKEND}"',
        f"max_batch_size: {options.max_rows}",
        "input [",
        ",\n".join(_input(tensor) for tensor in manifest.inputs),
        "]",
        "output [",
        ",\n".join(_output(tensor) for tensor in manifest.outputs if not tensor.on_request),
        "]",
        # One instance accepts requests and returns at once; the rows wait inside.
        "instance_group [ { count: 1 kind: KIND_CPU } ]",
    ]
    lines += [
        f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(value)} }} }}"
        for key, value in options.parameters().items()
    ]
    return _HEADER + "\n".join(lines) + "\n"


def write_logical_model(
    repository: Path, manifest: Manifest, *, library: Path | None = None, options: LogicalOptions | None = None
) -> Path:
    """Write the logical model's folder into a repository, and `library` (the backend) into it; returns the folder.

    ConfigError if a runtime has the name of the model, or the options name an unknown runtime.
    """
    options = options or LogicalOptions()
    if any(tensor.role == "tensor" for tensor in manifest.inputs):
        raise ConfigError("the backend inside Triton takes token ids only: serve tensors with `arlo serve`")
    names = {runtime.name for runtime in manifest.runtimes}
    if manifest.model in names:
        raise ConfigError(f"a runtime is called {manifest.model}, as the model that it is to answer for: rename one")
    if unknown := sorted(set(options.engines) - names):
        raise ConfigError(f"there is no runtime {unknown[0]}: there are {', '.join(sorted(names))}")
    folder = repository / manifest.model
    (folder / "1").mkdir(parents=True, exist_ok=True)
    # Git and object stores keep no empty folders, and Triton wants a version.
    (folder / "1" / "README").write_text("The plugin needs no files here; Triton needs the folder.\n")
    (folder / "config.pbtxt").write_text(logical_config(manifest, options))
    if library is not None:
        # A running server may have the old file mapped, so this replaces the file instead of its content.
        fresh = folder / f".{LIBRARY}"
        shutil.copyfile(library, fresh)
        fresh.chmod(0o755)
        fresh.replace(folder / LIBRARY)
    return folder


def _input(tensor: InputTensor) -> str:
    optional = tensor.optional or tensor.role == "mask"
    return (
        f"  {{ name: {json.dumps(tensor.name)} data_type: TYPE_{tensor.datatype} dims: [ -1 ]"
        f"{' optional: true' if optional else ''} }}"
    )


def _output(tensor: OutputTensor) -> str:
    dims = ", ".join(map(str, [-1] * tensor.token_level + list(tensor.dims)))
    kind = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
    return f"  {{ name: {json.dumps(tensor.name)} data_type: TYPE_{kind} dims: [ {dims} ] }}"
