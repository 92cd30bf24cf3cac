"""Print requirements out of pyproject.toml, one a line without spaces.

usage: tools/requirements.py build    requirements of the build (it runs without isolation)
       tools/requirements.py EXTRA    requirements of Arlo with that extra, without Arlo itself
"""

import re
import sys
import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
project = pyproject["project"]


def extra(name: str) -> set[str]:
    found: set[str] = set()
    for requirement in project["optional-dependencies"][name]:
        own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
        found |= set().union(*map(extra, own[1].split(","))) if own else {requirement}
    return found


if sys.argv[1] == "build":
    wanted = set(pyproject["build-system"]["requires"])
else:
    wanted = set(project["dependencies"]) | extra(sys.argv[1])
print(*sorted(requirement.replace(" ", "") for requirement in wanted), sep="\n")
