"""Joins repositories of one model, one maximum length each: rows go to the shortest runtime that fits them."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from arlo.catalog.manifest import Manifest
from arlo.compile.cache import Hasher, link_or_copy
from arlo.compile.steps.repository import publish, staging
from arlo.compile.verify.answers import FILE_NAME as REFERENCE
from arlo.compile.verify.answers import load, save


def put_together(parts: Sequence[Path], out: Path) -> Manifest:
    """Write `out` with the runtimes of all `parts`, hard-linked, each with the reference answers of its length; the
    rest of the manifest is the last part's. The parts share one model name; their runtimes' names differ.

    Raises the errors of `compile_model` for an unusable `out`.
    """
    manifests = [Manifest.load(part) for part in parts]
    if len(parts) == 1:
        publish(parts[0], out)
        return manifests[0]
    with staging(out) as folder:
        for part, manifest in zip(parts, manifests, strict=True):
            for runtime in manifest.runtimes:
                shutil.copytree(part / runtime.name, folder / runtime.name, copy_function=link_or_copy)
        last, where = manifests[-1], parts[-1]
        if last.tokenizer is not None:
            shutil.copyfile(where / last.tokenizer, folder / last.tokenizer)
        rows = [row for part in parts for row in load(part / REFERENCE, last.outputs)]
        save(folder / REFERENCE, rows, last.outputs)
        runtimes = tuple(runtime for manifest in manifests for runtime in manifest.runtimes)
        options = last.options | {
            "lengths": [runtime.max_length for runtime in runtimes],
            "reference_sha256": Hasher().file(folder / REFERENCE),
        }
        found = dataclasses.replace(last, runtimes=runtimes, options=options, recommendation=None)
        found.save(folder)
        publish(folder, out)
    return found
