"""Where the data and the models of cascades lie: steps of the cache that `arlo compile` uses, and a folder of links.

<cache>/compile/cascade-*/<key>/    what a step wrote, keyed by all that it was made from
<cache>/cascade/nouns/*.jsonl       the splits, hard-linked
<cache>/cascade/nouns-l6/           a model folder, hard-linked
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from arlo.compile.cache import Cache, Entry, Hasher, link_or_copy, temporary_folder


def cache_root() -> Path:
    """`$ARLO_CACHE`, else `~/.cache/arlo`, as `arlo compile` has it."""
    named = os.environ.get("ARLO_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "arlo"


def open_cache(root: Path) -> Cache:
    """The steps below `root`."""
    return Cache(root, Hasher())


def link_out(entry: Entry, folder: Path) -> Path:
    """Put the files of a step into `folder`, in place of what was there; returns it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder.parent, f".{folder.name}.") as fresh:
        for name in entry.files:
            link_or_copy(entry.folder / name, fresh / name)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return folder


def source_hash(*files: str) -> str:
    """sha256 of the source of modules beside this one, as `glosses`, so that changed code makes its result anew."""
    hasher, here = Hasher(), Path(__file__).parent
    return "-".join(hasher.file(here / f"{name}.py")[:16] for name in files)
