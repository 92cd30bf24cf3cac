#!/usr/bin/env bash
# Gathers what a release consists of in dist/release/VERSION: wheels, Helm chart, site, images and their checksums, all of
# the commit that is checked out. Uploads nothing: it prints the commands that do. Without Docker there are no images.
# usage: tools/release.sh VENV   after tools/wheel.sh, tools/helm.sh and the site
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
if [ -n "$(git status --porcelain)" ]; then
  echo "commit first: a release is of a commit, and these differ from it:" >&2
  git status --short >&2
  exit 1
fi
version=$("$venv/bin/python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
commit=$(git rev-parse --short HEAD)
out=dist/release/$version
rm -rf "$out"
mkdir -p "$out"

cp dist/arlo_serve-"$version"-*.whl constraints.txt "$out"
build/chart/bin/helm package deploy/chart --version "$version" --app-version "$version" --destination "$out"
tar --sort=name --owner=0 --group=0 --mtime="@$(git log -1 --format=%ct)" -czf "$out/arlo-site-$version.tar.gz" -C build/html .
images=()
if docker info >/dev/null 2>&1; then
  for target in gateway control whole; do
    docker build --quiet --file deploy/Dockerfile --target "$target" --tag "arlo-$target:$version" .
    images+=("arlo-$target:$version")
  done
  docker build --quiet --file deploy/Dockerfile.worker --tag "arlo-worker:$version" .
  images+=("arlo-worker:$version")
  for image in "${images[@]}"; do docker save "$image" | gzip >"$out/${image/:/-}.tar.gz"; done
else
  echo "no images: Docker is not here, or not running"
fi
(cd "$out" && sha256sum -- * >SHA256SUMS)

cat <<TEXT

$out, of commit $commit:
$(sed 's/^/  /' "$out/SHA256SUMS")

Where it goes:
  wheels  an index of Python packages, the name arlo-serve: twine upload $out/*.whl
          or a folder that \`pip install --find-links\` names, with constraints.txt beside it
  chart   a registry: helm push $out/arlo-$version.tgz oci://REGISTRY/charts
  site    any server of files: tar -xzf $out/arlo-site-$version.tar.gz -C FOLDER
  images  a registry: docker tag and docker push; images of the chart names them
  then    git tag v$version $commit, and the date in CHANGELOG.md
TEXT
