"""docs/scenario.md, written from the declarations in sections.py."""

from __future__ import annotations

from arlo.config.reference import tables
from arlo.simulator.scenario.file import ARRAYS, SECTIONS

HEAD = """# Scenario files

<!-- Written by `make docs` from simulator/scenario/sections.py; a test fails when the two differ. -->

`arlo simulate SCENARIO.toml` reads one TOML file; flags override it, `--save FILE.toml` writes it. Relative paths are
relative to the file. An unknown key is an error that names the nearest one. Every key has a default, so the smallest
file is an empty one. [Simulate](simulator.md#what-is-modelled) says what is modelled.

```toml
[workload]
arrivals = "twitter-bursty"
rate = 4000

[cluster]
profile = "bert-base"
workers = 14
```
"""


def reference() -> str:
    """The whole page, Markdown."""
    parts = [HEAD, *(tables(f"[{name}]", cls) for name, cls in SECTIONS.items())]
    parts += [tables(f"[[{name}]]", cls) for name, cls in ARRAYS.items()]
    return "\n".join(parts).rstrip() + "\n"
