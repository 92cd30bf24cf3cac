"""Several models on the same workers: one repository with the runtimes of all, as links, and one manifest.

Triton serves the joined folder like any other. Placement, loading and counting see one model, the first, whose only
runtime is a bundle (arlo.control.reconcile.choice); the properties of one model, such as tensors, are in
`Joined.manifests`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

from arlo.catalog.manifest import Manifest, Runtime
from arlo.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Joined(Manifest):
    """`manifests`: one per model, in the order of the configuration; `model` and the tensors are those of the first."""

    manifests: tuple[Manifest, ...]

    @property
    def models(self) -> tuple[Manifest, ...]:
        return self.manifests

    def of(self, runtime: Runtime) -> Manifest:
        """The manifest of the model that a runtime belongs to."""
        return next(manifest for manifest in self.manifests if runtime.name in {r.name for r in manifest.runtimes})


def joined(manifests: Sequence[Manifest], names: Sequence[str | None] = ()) -> Joined:
    """One manifest of at least two. ConfigError if two models have a runtime of one name. `names`: as configured."""
    owner: dict[str, str] = {}
    for number, manifest in enumerate(manifests):
        name = (names[number] if names else None) or manifest.model
        for runtime in manifest.runtimes:
            if runtime.name in owner:
                raise ConfigError(
                    f"models {owner[runtime.name]!r} and {name!r} both have a runtime {runtime.name}, which would be "
                    "one folder on their workers: compile one of them with another --name"
                )
            owner[runtime.name] = name
    first = {field.name: getattr(manifests[0], field.name) for field in dataclasses.fields(Manifest)}
    runtimes = tuple(runtime for manifest in manifests for runtime in manifest.runtimes)
    return Joined(**{**first, "runtimes": runtimes, "recommendation": None}, manifests=tuple(manifests))


def link(repositories: Sequence[Path], manifest: Manifest, parent: Path) -> Path:
    """A Triton repository in `parent` with links to the runtimes of a joined manifest, in its models' repositories,
    and to the first one's tokenizer.

    Its name is derived from its links, so another set of models in the same place leaves the folder of a running server
    intact. ConfigError if it cannot be written.
    """
    wanted = {
        runtime.name: (repository / runtime.name).resolve()
        for repository, one in zip(repositories, manifest.models, strict=True)
        for runtime in one.runtimes
    }
    if manifest.tokenizer is not None and (tokenizer := repositories[0] / manifest.tokenizer).is_file():
        wanted[manifest.tokenizer] = tokenizer.resolve()  # of the first model, whose folder this one replaces
    listing = "\n".join(f"{name} {target}" for name, target in sorted(wanted.items()))
    folder = parent / f"models-{hashlib.sha256(listing.encode()).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, target in wanted.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                (folder / name).symlink_to(target, target_is_directory=target.is_dir())
    except OSError as error:
        raise ConfigError(f"workers.run_dir: {folder} cannot be written ({error.strerror})") from None
    manifest.save(folder)
    return folder
