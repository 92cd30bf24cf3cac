"""Lets a plain checkout run, without Arlo installed: some of its packages lie in top-level folders of the repository.

An installed Arlo has them below `arlo` (pyproject.toml, scikit-build.wheel.packages). What is compiled (arlo._core, the
gateway, the load generator) is then absent, and so is everything that needs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def attach() -> bool:
    """Make `arlo.compile`, `arlo.traces`, ... importable from the checkout. True when that was needed."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    arlo = importlib.import_module("arlo")
    if importlib.util.find_spec("arlo.compile") is not None:
        return False
    # `compile`, `simulator` and `traces` lie in the root, `templates` in triton_repo; arlo's own folder stays first.
    arlo.__path__.extend([str(ROOT), str(ROOT / "triton_repo")])
    importlib.invalidate_caches()
    return True
