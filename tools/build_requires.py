"""Print what pyproject.toml needs to build, one requirement a line: the build runs without isolation."""

import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
print(*(requirement.replace(" ", "") for requirement in pyproject["build-system"]["requires"]), sep="\n")
