#!/usr/bin/env bash
# Creates the virtual environment with the first Python 3.11 or 3.12 that can be found. (Arlo itself runs
# on 3.13 too, but there nvidia-pytriton wants numpy<2 and ml_dtypes, which onnx needs, numpy>=2.1.)
# usage: tools/venv.sh FOLDER; PYTHON=/path/to/python chooses another one.
set -euo pipefail
venv=$1

fits() { "$1" -c 'import sys, venv, ensurepip; sys.exit(not ((3, 11) <= sys.version_info[:2] < (3, 13)))' 2>/dev/null; }

if [ -x "$venv/bin/python" ] && fits "$venv/bin/python"; then
  exit 0
fi
for python in ${PYTHON:-python3.11 python3.12 python3}; do
  if fits "$python"; then
    echo "== Virtual environment $venv with $("$python" --version)"
    exec "$python" -m venv --clear "$venv"
  fi
done
echo "No Python 3.11 or 3.12 with the venv module was found (tried: ${PYTHON:-python3.11 python3.12 python3})." >&2
echo "Install one, for example: sudo apt-get install -y python3 python3-venv python3-dev; or name it: make setup PYTHON=/path/to/python" >&2
exit 1
