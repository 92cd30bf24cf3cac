#!/usr/bin/env bash
# Packs what a GPU machine without a network needs to run the GPU benchmarks, on any machine without a GPU, into .gpu-kit/:
# Arlo, Triton's server with its Python backend, ONNX Runtime for CUDA 13 and one architecture. benchmarks/gpu/offline/
# unpack.sh unpacks it there. Python 3.12 there has PyTorch, transformers, numpy, grpcio, protobuf and onnx already.
# Downloads are pinned by version and SHA-256; parts packed before are reused from ~/.cache/arlo/gpu-kit.
# usage: benchmarks/gpu/offline/pack.sh [--without PART]...     PART: arlo, triton or ort
# Fails where kit and checkout, which travels too, are more than 66 MB together.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
limit=66000000
parts=(arlo triton ort)
compress="--x86 --lzma2=preset=9e,dict=64MiB"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/arlo/gpu-kit
out=$root/.gpu-kit without=' '

while [ $# -gt 0 ]; do
  [[ $1 == --without && " ${parts[*]} " == *" ${2:-} "* ]] || { sed -n 's/^# usage: //p' "$0" >&2; exit 2; }
  without+="$2 "
  shift 2
done
cd "$root"
for tool in gcc strip readelf c++filt xz tar sha256sum; do
  command -v $tool >/dev/null || { echo "$tool is needed: apt-get install binutils gcc xz-utils" >&2; exit 1; }
done
python=.venv/bin/python
[ -x $python ] || { echo "The environment is not there: make setup" >&2; exit 1; }
mkdir -p "$cache/wheels" "$out"
scratch=
trap '[ -z "$scratch" ] || rm -rf "$scratch"' EXIT

# name, version, SHA-256 of the file that fits Python 3.12 on Linux
pins='
nvidia-pytriton 0.7.0 21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df
tritonclient 2.73.0 1f5cec19b0568e037ec4d716ae702984b3ab93e35f72b8f72c5135374dd2be9a
prometheus_client 0.26.0 fa93d06737aa02bacd05794768508bb97d2fbee28cb3bca04eaae92f0ca953d6
python-rapidjson 1.25 d425190a9cc78f46f897d0efceddc094048ea08d584340a5830f48e186607f9c
onnxruntime-gpu 1.31.1 05d548956197b9d01f59b625de740e0d6be3593f874e241a12dc0362650ecdf7
'

# The file of a pinned package, fetched where it is not in the cache.
fetched() {
  local name version sum folder
  read -r name version sum < <(grep "^$1 " <<<"$pins")
  folder=$cache/wheels/$sum
  if ! sha256sum --quiet -c <<<"$sum  $(echo "$folder"/*.whl)" >/dev/null 2>&1; then
    rm -rf "$folder"
    echo "== fetching $name $version" >&2
    $python -m pip --disable-pip-version-check download --quiet --no-deps --require-hashes --dest "$folder" \
      --only-binary :all: --implementation cp --python-version 3.12 --abi cp312 --abi abi3 --abi none \
      --platform manylinux_2_35_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform any \
      -r <(echo "$name==$version --hash=sha256:$sum") >&2 2> >(grep -v 'is ignored: it is neither' >&2)
  fi
  echo "$folder"/*.whl
}

# One line that identifies the sources of Arlo's wheel.
sources() {
  git ls-files -z -co --exclude-standard -- arlo compile simulator traces triton_repo/templates src proto cmake CMakeLists.txt \
    pyproject.toml README.md LICENSE tools/wheel.sh | xargs -0 sha256sum 2>/dev/null | sha256sum  # some are deleted
}

built() {  # the newest wheel of Arlo for 3.12 and later, built from the checkout
  local version
  for version in 3.12 3.13 3.14; do
    PYTHONS=$version nice tools/wheel.sh .venv >"$cache/wheel.log" 2>&1 || { tail -n 30 "$cache/wheel.log" >&2; return 1; }
    grep -q "not here with its headers" "$cache/wheel.log" || break
  done
  ls -t dist/arlo_serve-*-cp312-abi3-*.whl | sed -n 1p
}

wheels() {  # the files that a part is made of
  case $1 in
    arlo) built && fetched tritonclient && fetched prometheus_client && fetched python-rapidjson ;;
    triton) fetched nvidia-pytriton ;;
    ort) fetched onnxruntime-gpu ;;
  esac
}

# Packs part $1, whose unpinned sources $2 describes; or takes it from the cache.
part() {
  local name=$1 key archive files
  key=$(printf '%s\n' "$2" "$compress" "$(sha256sum <"$here/pack.py")" "$(declare -f wheels)$pins" | sha256sum | cut -c1-16)
  archive=$cache/$name-$key.tar.xz
  if [ ! -f "$archive" ]; then
    echo "== packing $name" >&2
    scratch=$(mktemp -d "$cache/scratch.XXXXXX")
    files=$(wheels "$name") || exit 1
    nice $python "$here/pack.py" "$name" "$scratch/tree" $files
    rm -f "$cache/$name"-*
    tar -C "$scratch/tree" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - . |
      nice xz $compress >"$scratch/archive"
    mv "$scratch/archive" "$archive"
    rm -rf "$scratch"
  fi
  cp "$archive" "$out/$name.tar.xz"
  printf '%-9s %7.2f MB\n' "$name" "$(mb "$(stat -c %s "$archive")")"
}
mb() { awk -v n="$1" 'BEGIN { printf "%.2f", n / 1e6 }'; }

rm -f "$out"/*.tar.xz "$out/SHA256SUMS"
for name in "${parts[@]}"; do
  [[ $without == *" $name "* ]] || part "$name" "$([ "$name" != arlo ] || sources)"
done
(cd "$out" && find . -name '*.tar.xz' -print0 | sort -z | xargs -r0 sha256sum >SHA256SUMS)

# Total size to transfer: the kit, and the files of the checkout that git does not ignore.
kit=$(cat "$out"/* | wc -c)
tree=$(git ls-files -z -co --exclude-standard | du -cb --files0-from=- 2>/dev/null | tail -n 1 | cut -f1 || true)
echo "sum       $(mb $((kit + tree))) MB of $(mb $limit) MB: kit $(mb "$kit") MB in $out, checkout $(mb "$tree") MB"
[ $((kit + tree)) -le $limit ] ||
  { echo "That is more than travels: pack --without ort (no CUDA in ONNX Runtime), or move files away." >&2; exit 1; }
