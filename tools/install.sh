#!/usr/bin/env bash
# Installs into the virtual environment: the pinned packages and Arlo itself, editable. usage: tools/install.sh VENV [--native]
# --native: Arlo only (C++ that changed is built, new Python files are found).
# The C++ build takes as long as the packages, so the two run side by side the first time. Its log: build/install.log.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1/bin/python
pip=("$python" -m pip --disable-pip-version-check)
log=build/install.log
# The C++ unit tests and micro benchmarks are configured in the same build folder, and built there on demand: its libraries
# serve them too.
also=()
for define in ARLO_BUILD_TESTS ARLO_BUILD_BENCH; do
  also+=(--config-settings="cmake.define.$define=ON")
done
also+=(--config-settings="cmake.define.ARLO_PORTABLE=OFF")  # tools/wheel.sh builds in the same folder
mkdir -p build

# Numbers pip's downloads to show how many remain: one for each pin that applies to this platform.
numbered() {
  awk -v total="$(grep -c == constraints.txt)" '
    /\.metadata \(/ { next }
    /^ *(Downloading|Using cached)/ { sub(/^ */, ""); printf "   package %d of about %d: %.90s\n", ++n, total, $0; fflush(); next }
    /^Installing/ { printf "   %d packages are here, unpacking them, which takes a minute or more\n", n; fflush() }
    /^Successfully/ { print "   packages are installed"; fflush() }'
}

# Bytecode is left to the first import: compiling all of it takes longer than the rest of the installation. The script
# shows pip's current activity, but not its remarks on each of a hundred packages.
install() {
  "${pip[@]}" install --no-compile --no-build-isolation --progress-bar off -c constraints.txt "$@" > >(numbered) \
    2> >(grep --line-buffered -v '^WARNING: Location .* is ignored' >&2)
}

# Runs pip on this folder: ninja's progress is shown, everything goes to the log, which is shown when it fails.
build() {
  : >"$log"
  tail --follow=name --retry --lines=+1 "$log" 2>/dev/null \
    > >(grep --line-buffered -oE '\[[0-9]+/[0-9]+\] [A-Z][a-z]+ing .*' | sed -u -E 's/^/   /; s#(.{110}).*#\1#') &
  local showing=$! status=0
  "${pip[@]}" "$@" --verbose --no-deps --no-build-isolation "${also[@]}" >"$log" 2>&1 || status=$?
  kill $showing 2>/dev/null || true
  if [ $status -ne 0 ]; then
    cat "$log" >&2
    echo "The build of Arlo failed: see above, or $log" >&2
  fi
  return $status
}

if [ "${2:-}" != --native ]; then
  echo "== Set-up, once, three steps: what the build needs; packages and C++ side by side; Arlo itself. Minutes on two cores."
  echo "== 1 of 3: what the build needs"
  install $("$python" tools/requirements.py build)
  echo "== 2 of 3: packages, and the C++ parts beside them, [done/all] (their log: $log)"
  build wheel --wheel-dir build/wheel . &
  building=$!
  trap 'kill $building 2>/dev/null || true' EXIT
  install $("$python" tools/requirements.py dev)
  wait $building
  last="3 of 3: "
  trap - EXIT
fi
echo "== ${last:-}Arlo itself"
build install --no-compile --editable .
