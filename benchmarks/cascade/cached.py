"""Where the data and the models of cascades lie: steps of the cache that `arlo compile` uses, and a folder of links.

<cache>/compile/cascade-*/<key>/    what a step wrote, keyed by all that it was made from
<cache>/cascade/nouns/*.jsonl       the splits, hard-linked
<cache>/cascade/nouns-l6/           a model folder, hard-linked
"""

from __future__ import annotations

import os
from pathlib import Path

from arlo.compile.cache import Cache, Hasher


def cache_root() -> Path:
    """`$ARLO_CACHE`, else `~/.cache/arlo`, as `arlo compile` has it."""
    named = os.environ.get("ARLO_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "arlo"


def open_cache(root: Path) -> Cache:
    """The steps below `root`."""
    return Cache(root, Hasher())


def source_hash(*files: str) -> str:
    """sha256 of the source of modules beside this one, as `glosses`, so that changed code makes its result anew."""
    hasher, here = Hasher(), Path(__file__).parent
    return "-".join(hasher.file(here / f"{name}.py")[:16] for name in files)
