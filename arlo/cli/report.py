"""`arlo report`: result files as one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from arlo.errors import ConfigError, explain

EPILOG = """examples:
  arlo replay TRACE --out monday              among others monday/report.json
  arlo report monday/report.json              writes monday/report.html
  arlo report monday/report.json tuesday/report.json --out both.html      one over the other

These write result files: `arlo replay --out DIR`; `arlo replay`, `arlo fit` and `arlo plan flow` with `--report
FILE.json`; `arlo simulate` and `arlo simulate trace inspect` with `--plot FILE.json`. With a name in .html they write
the page themselves.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `report`."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "report",
        help="result files as a page, one over the other",
        description="Draw what other commands found as one HTML page that loads nothing from anywhere. Several\n"
        "results are compared: a row of figures and a line of each chart for each.",
        epilog=EPILOG,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json", help="result files")
    parser.add_argument(
        "--out", type=Path, metavar="FILE.html", help="the page (default: the first file's name with .html)"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    from arlo.report.result import load, save

    results = []
    for path in args.files:
        found = load(path)
        if len(args.files) > 1:  # each is named after its file, DIR/report.json after its folder
            name = path.absolute().parent.name if path.stem == "report" else path.stem
            found = [each | {"label": name if len(found) == 1 else f"{name}: {each.get('label')}"} for each in found]
        results += found
    out = args.out if args.out is not None else args.files[0].with_suffix(".html")
    try:
        save(out, results)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        files = ", ".join(map(str, args.files))
        raise ConfigError(f"{files}: a result is damaged ({explain(error)}): write it again") from None
    print(f"wrote {out}", file=sys.stderr)
    return 0
