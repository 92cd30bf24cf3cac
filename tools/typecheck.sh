#!/usr/bin/env bash
# mypy --strict over the package, the benchmarks and the programs that tests start, in a tree of links: templates are laid
# out there as they lie in a repository.
# usage: tools/typecheck.sh VENV
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$(cd "$1" && pwd)
tree=$root/build/typecheck

mkdir -p "$tree"
rm -rf "$tree/arlo"
mkdir "$tree/arlo"
for entry in "$root"/arlo/*; do
  [[ $(basename "$entry") =~ ^(__pycache__|templates)$ ]] || ln -s "$(readlink -f "$entry")" "$tree/arlo/"
done
ln -sfn "$root/benchmarks" "$root/tests" "$tree/"  # benchmarks, and the programs that tests start
# Model code as it lies in a repository: what all engines share beside the engine's own.
for folder in "$root"/triton_repo/templates/*/; do
  into=$tree/arlo/templates/$(basename "$folder")
  mkdir -p "$into"
  ln -s "$root"/triton_repo/templates/*.py "$folder"*.py "$into/"
done

cd "$tree"  # the working folder comes first in mypy's search path, before the root
exec "$venv/bin/mypy" --config-file "$root/pyproject.toml" --cache-dir "$root/.mypy_cache" -p arlo -p benchmarks -p tests.fakes
