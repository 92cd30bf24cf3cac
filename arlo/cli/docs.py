"""Documents that the program writes: docs/cli.md, docs/configuration.md and docs/scenario.md.

`python -m arlo.cli.docs DIR` rewrites them in DIR, `python -m arlo.cli.docs DIR --check` exits 1 when they differ.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from arlo.cli.app import build_parsers
from arlo.cli.commands import COMMANDS, actions_of, nested

HEAD = """# Command line

<!-- Written by `make docs` from the program's own --help; a test fails when the two differ. -->
"""


def cli_page() -> str:
    """docs/cli.md: the help of `arlo` and of every command."""
    top = build_parsers().top
    parts = [HEAD, f"## arlo\n\n```text\n{top.format_help().rstrip()}\n```\n"]
    for command in [each for parent in COMMANDS for each in (parent, *actions_of(parent))]:
        for one in nested(build_parsers(command.name).top):
            marks = "##" if one.prog.count(" ") == 1 else "###"
            parts.append(f"{marks} {one.prog}\n\n```text\n{one.format_help().rstrip()}\n```\n")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """File name -> content."""
    from arlo.config.reference import reference
    from arlo.simulator.scenario.reference import reference as scenario_reference

    return {"cli.md": cli_page(), "configuration.md": reference(), "scenario.md": scenario_reference()}


def main(argv: list[str] | None = None) -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(prog="python -m arlo.cli.docs", description=__doc__)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(argv)
    code = 0
    for name, text in pages().items():
        path: Path = args.dir / name
        if args.check:
            if not path.is_file() or path.read_text() != text:
                print(f"{path} differs from what the program says: run `make docs`", file=sys.stderr)
                code = 1
        else:
            args.dir.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path}")
    return code


if __name__ == "__main__":
    sys.exit(main())
