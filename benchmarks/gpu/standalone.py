"""Makes a plain checkout run without Arlo installed: some of its packages lie in top-level folders of the repository.

Compiled parts (arlo._core, the gateway, the load generator) are then absent, as is everything that needs them.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def attach() -> bool:
    """Make `arlo.compile`, `arlo.templates`, ... importable from the checkout. True when that was needed."""
    with contextlib.suppress(ModuleNotFoundError):  # an installed Arlo has them
        if importlib.util.find_spec("arlo.compile") is not None:
            return False
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    # `compile`, `simulator` and `traces` lie in the root, `templates` in triton_repo; arlo's own folder stays first.
    importlib.import_module("arlo").__path__.extend([str(ROOT), str(ROOT / "triton_repo")])
    importlib.invalidate_caches()
    return True
