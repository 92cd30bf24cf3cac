"""Writes a C++ file with the bytes of others: embed.py OUT.inc NAME=FILE ..."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    lines = []
    for given in sys.argv[2:]:
        name, _, file = given.partition("=")
        content = Path(file).read_bytes()
        lines.append(f"constexpr unsigned char {name}[] = {{")
        lines += [",".join(map(str, content[at : at + 32])) + "," for at in range(0, len(content), 32)]
        lines.append("};")
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
