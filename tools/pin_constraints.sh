#!/usr/bin/env bash
# Writes constraints.txt from the packages of a virtual environment. usage: tools/pin_constraints.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
{
  echo "# Pins of every package that Arlo, its extras and its build use: what the tests ran with."
  echo "# Made by \`make constraints\` ($("$venv/bin/python" -c 'import platform; print("Python", platform.python_version())')): pip freeze --all without arlo-serve, pip and local versions (+cpu)."
  echo "# Used as \`pip install -c constraints.txt ...\`: nothing here is installed unless something asks for it."
  echo "# numpy below 2 is nvidia-pytriton's wish; it has no build for Python 3.13, where only Arlo without that extra installs."
  "$venv/bin/python" -m pip freeze --all --exclude-editable --exclude arlo-serve --exclude pip |
    grep -vE '^(-e|arlo)' |
    sed -E -e 's/^([^=]+==[^+]+)\+.*$/\1/' -e 's/^(numpy==1\..*)$/\1; python_version < "3.13"/' | LC_ALL=C sort -f
} >constraints.txt.new
mv constraints.txt.new constraints.txt
