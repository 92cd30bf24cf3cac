#!/usr/bin/env bash
# mypy --strict over the packages that pyproject.toml lists, in a tree of links: model code lies there next to the files
# that engines share, as in a repository.
# usage: tools/typecheck.sh VENV
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=$(cd "$1" && pwd)
tree=$root/build/typecheck

rm -rf "$tree"
mkdir -p "$tree"
cp -rsL "$root/arlo" "$tree"  # folders, and links to files: also where arlo/ has links to folders
ln -s "$root/benchmarks" "$root/tests" "$tree"
for engine in "$tree"/arlo/templates/*/; do
  ln -s "$tree"/arlo/templates/*.py "$engine"
done

cd "$tree"  # where mypy looks for packages first
exec "$venv/bin/mypy" --config-file "$root/pyproject.toml" --cache-dir "$root/.mypy_cache"
