#!/usr/bin/env bash
# Unpacks the kit that pack.sh made into DIR: an environment above that of `python3`, whose packages it sees and leaves as
# they are. `source DIR/env.sh` enters it. Needs no network and no compiler.
# usage: benchmarks/gpu/offline/unpack.sh DIR     PYTHON=... the Python below; default: python3
# env.sh sets PATH (DIR/bin first: python3, arlo, arlo-gateway, arlo-loadgen), PYTHONSAFEPATH (the checkout's folder
# arlo/ is not the installed package), ARLO_KIT (DIR) and ARLO_KIT_PARTS. LD_LIBRARY_PATH stays as it is.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/../../.." && pwd)
kit=$checkout/.gpu-kit
[ $# -eq 1 ] || { sed -n 's/^# usage: //p' "$0" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
below=$(command -v "${PYTHON:-python3}")
[ -f "$kit/SHA256SUMS" ] || { echo "No kit in $kit: run benchmarks/gpu/offline/pack.sh on a machine with a network" >&2; exit 1; }
"$below" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' ||
  { echo "The kit is for Python 3.12, and $below is $("$below" --version)" >&2; exit 1; }

# --- unpack, all parts at once ------------------------------------------------------------------------------------------
(cd "$kit" && sha256sum --quiet -c SHA256SUMS)
running=() parts=
for part in arlo triton ort; do
  [ -f "$kit/$part.tar.xz" ] || continue
  parts+="$part "
  tar -C "$dir" -xJf "$kit/$part.tar.xz" &
  running+=($!)
done
mkdir -p "$dir/bin" "$dir/lib/python3.12/site-packages"
base=$("$below" -c 'import os, sys; print(os.path.realpath(sys._base_executable))')
ln -sfn "$base" "$dir/bin/python3"
ln -sfn python3 "$dir/bin/python"
printf 'home = %s\ninclude-system-site-packages = false\nversion = 3.12\n' "${base%/*}" >"$dir/pyvenv.cfg"
for process in "${running[@]}"; do wait "$process"; done

# --- above the Python below ---------------------------------------------------------------------------------------------
site=$dir/lib/python3.12/site-packages
python=$dir/bin/python3
"$below" - >"$site/below.pth" <<'PY'
import os, site, sysconfig
folders = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()])
print("import site; " + "; ".join(f"site.addsitedir({folder!r})" for folder in folders if os.path.isdir(folder)))
PY
# `python3 -m benchmarks.gpu` from anywhere; what it reads and writes is the checkout's.
for name in benchmarks tests; do ln -sfn "$checkout/$name" "$site/$name"; done
# ONNX Runtime looks for CUDA's libraries next to its package.
nvidia=$("$below" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
[ ! -d "$nvidia" ] || [ -e "$site/nvidia" ] || ln -s "$nvidia" "$site/nvidia"
cat >"$dir/bin/arlo" <<PY
#!$python
import sys
from arlo.cli import main
sys.exit(main())
PY
chmod +x "$dir/bin/arlo"
cat >"$dir/env.sh" <<SH
export ARLO_KIT=$dir
export ARLO_KIT_PARTS="${parts% }"
export PATH=$dir/bin:\$PATH
export PYTHONSAFEPATH=1
unset VIRTUAL_ENV PYTHONHOME
SH
source "$dir/env.sh"
PYTHONDONTWRITEBYTECODE='' "$python" -m compileall -q -j 0 "$site" &  # not below links
compiling=$!

# --- ONNX Runtime takes the place of the one below only where it answers ----------------------------------------------
if [ -d "$dir/ort" ]; then
  if said=$(PYTHONPATH=$dir/ort timeout 60 "$python" - 2>&1 <<'PY'
import os, sys
import onnxruntime as ort
ort.set_default_logger_severity(3)
assert "CUDAExecutionProvider" in ort.get_available_providers(), ort.get_available_providers()
if not os.path.exists("/dev/nvidiactl"):
    sys.exit(print(ort.__version__, "with CUDA, no GPU here: imported only"))
import numpy, onnx.parser
ort.preload_dlls()
model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
  probe (int64[2, 8] ids, float16[100, 64] table, float16[64] scale, float16[64, 64] weight) => (float16[2, 8, 64] out) {
    rows = Gather(table, ids)
    normed = LayerNormalization(rows, scale)
    made = MatMul(normed, weight)
    bent = Erf(made)
    out = Softmax(bent)
  }""").SerializeToString()
random = numpy.random.default_rng(7)
feed = {name: random.random(shape).astype("f2") for name, shape in (("table", (100, 64)), ("scale", 64), ("weight", (64, 64)))}
feed["ids"] = random.integers(0, 100, (2, 8))
one, two = (ort.InferenceSession(model, providers=[p]) for p in ("CUDAExecutionProvider", "CPUExecutionProvider"))
assert "CUDAExecutionProvider" in one.get_providers(), "the CUDA provider did not load"
error = float(abs(one.run(None, feed)[0].astype("f4") - two.run(None, feed)[0].astype("f4")).max())
assert error < 2e-3, error
print(ort.__version__, f"with CUDA: a small graph on the GPU answers, {error:.1e} from the CPU")
PY
  ); then
    for each in "$dir"/ort/*; do ln -sfn "$each" "$site/${each##*/}"; done
    echo "onnxruntime (kit) ${said##*$'\n'}"
  else
    echo "onnxruntime      of the kit does not answer, the one below is used: $said" >&2
    sed -i '/ARLO_KIT_PARTS/s/ *ort//' "$dir/env.sh"
  fi
fi
wait $compiling

# --- versions ---------------------------------------------------------------------------------------------------------
[[ " $parts" != *" arlo "* ]] || arlo version
[[ " $parts" != *" triton "* ]] || {
  server=$site/pytriton/tritonserver/bin/tritonserver
  libraries=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')  # as Arlo starts it
  ! LD_LIBRARY_PATH=$libraries ldd "$server" "$site"/pytriton/tritonserver/{backends/python/libtriton_python.so,python_backend_stubs/3.12/triton_python_backend_stub} |
    grep 'not found' >&2 || { echo "Triton's server lacks libraries" >&2; exit 1; }
  [[ $(timeout 10 "$server" --help 2>&1) == *model-repository* ]] || { echo "Triton's server does not start" >&2; exit 1; }
  echo "tritonserver     starts"
}
echo "Unpacked into $dir in $SECONDS s: source $dir/env.sh"
