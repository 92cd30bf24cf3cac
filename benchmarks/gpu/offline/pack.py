"""Lays the parts of the offline kit out as the folders that unpack.sh expects; pack.sh calls it.

usage: pack.py PART OUT WHEEL...       the new folder OUT becomes what unpack.sh lays over an environment of Python 3.12
"""

from __future__ import annotations

import ctypes
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PYTHON = "3.12"
SITE = f"lib/python{PYTHON}/site-packages"
NOT_STRIPPED = ("libtriton_python.so",)  # arlo/workers/triton/preload.py knows it by its hash
BYTECODE_OR_TESTS = re.compile(r"\.pyc$|/(tests?|testing)/")


def install(wheel: Path, prefix: Path, *, wanted: re.Pattern[str] | None = None) -> None:
    """Put a wheel's files where pip would; unpack.sh writes console scripts."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            name = info.filename
            if info.is_dir() or BYTECODE_OR_TESTS.search(name) or (wanted and not wanted.search(name)):
                continue
            data = re.match(r"[^/]+\.data/(scripts|data|purelib|platlib)/(.+)", name)
            folder, rest = data.groups() if data else ("purelib", name)
            target = prefix / {"scripts": "bin", "data": "."}.get(folder, SITE) / rest
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(info))
            runs = folder == "scripts" or (info.external_attr >> 16) & stat.S_IXUSR
            target.chmod(0o755 if runs else 0o644)


def strip(prefix: Path) -> None:
    """Remove symbols that are unused at run time."""
    for path in sorted(prefix.rglob("*")):
        stripped = path.is_file() and not path.is_symlink() and path.name not in NOT_STRIPPED
        if stripped and path.read_bytes().startswith(b"\x7fELF"):
            subprocess.run(("strip", "--strip-unneeded", str(path)), check=True)


def arlo(prefix: Path, wheels: list[Path]) -> None:
    """Add Arlo and its imports that the GPU machine lacks."""
    for wheel in wheels:
        install(wheel, prefix)
    strip(prefix)


# --- Triton -----------------------------------------------------------------------------------------------------------
TRITON = re.compile(
    r"^nvidia_pytriton\.libs/(?!libpython)"  # of the stub for Python 3.13 only
    r"|^pytriton/__init__\.py$"
    r"|^pytriton/tritonserver/(bin|backends)/"
    rf"|^pytriton/tritonserver/python_backend_stubs/{re.escape(PYTHON)}/"
    r"|\.dist-info/(METADATA|licenses/)"
)
NO_ICU_DATA = """/* ICU's data, empty: libxml2 finds no converter of ICU's. Triton reads XML of cloud storage only. */
__attribute__((aligned(16))) const char icudt70_dat[64] = {0};
"""


def triton(prefix: Path, wheels: list[Path]) -> None:
    """Add Triton's server and its Python backend, without ICU's tables (7 MB compressed)."""
    install(wheels[0], prefix, wanted=TRITON)
    init = prefix / SITE / "pytriton" / "__init__.py"
    init.write_text('"""Only the folder of Triton\'s server: this package is a part of an offline kit."""\n')
    (data,) = (prefix / SITE / "nvidia_pytriton.libs").glob("libicudata-*")
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "data.c"
        source.write_text(NO_ICU_DATA)
        build = ("gcc", "-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{data.name}", "-o", str(data), str(source))
        subprocess.run(build, check=True)
    strip(prefix)


# --- ONNX Runtime for one GPU architecture ----------------------------------------------------------------------------
ARCHITECTURE, OTHER = 90, 75  # kept; one that the GPU's driver does not take
ORT = re.compile(r"^onnxruntime/(__init__\.py|LICENSE|capi/|transformers/__init__)|\.dist-info/(METADATA|licenses/)")
NOT_ORT = ("libonnxruntime.so.*", "libonnxruntime_providers_tensorrt.so")  # for C programs; TensorRT is not there
# Kernels of language models: mixtures of experts, weights of a few bits, decoding, caches of keys and values. A source
# file's code goes only when all of its kernels match.
NO_ENCODER = re.compile(
    r"[Mm]oe|MoE|fpA_intB|FpAIntB|GemmUniversal|[Ii]nt4|[Ff]p4|Float[248]b?|MatMul\w*Fp8|masked_multihead|BeamSearch"
    r"|LinearAttention|kernel_mha|Paged|gated_delta|arch::Sm(50|70|75)|flash_fwd.*bfloat16"
    r"|flash_fwd\w*kernel<\S*Flash_fwd_kernel_traits<(96|160|192|224|256),|flash_fwd_splitkv\w*<\S*traits<128,"
)


def entries(section: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """The entries of all containers of GPU code: offset of the header, its size, that of the code, architecture."""
    at = 0
    while at < len(section) - 16:
        if bytes(section[at : at + 4]) != b"\x50\xed\x55\xba":
            at += 8
            continue
        header, size = struct.unpack_from("<HQ", section, at + 6)
        start, end = at + header, at + header + size
        while start < end:
            head, code = struct.unpack_from("<IQ", section, start + 4)
            yield start, head, code, struct.unpack_from("<I", section, start + 28)[0]
            start += head + code
        at = end


def kernels(zstd: ctypes.CDLL, section: memoryview, entry: tuple[int, int, int, int]) -> list[str]:
    """The kernels in an entry, which are its sections .text.NAME, demangled."""
    start, head, code, _ = entry
    packed, whole = struct.unpack_from("<I", section, start + 16)[0], struct.unpack_from("<Q", section, start + 56)[0]
    elf = bytes(section[start + head : start + head + (packed or code)])
    if packed:
        buffer = ctypes.create_string_buffer(whole)
        if zstd.ZSTD_decompress(buffer, ctypes.c_size_t(whole), elf, ctypes.c_size_t(len(elf))) != whole:
            raise ValueError(f"GPU code at {start:#x} is not compressed by zstd")
        elf = buffer.raw
    found = sorted({name.decode() for name in re.findall(rb"\.text\.([^\0]+)\0", elf)})
    return subprocess.run(("c++filt", *found), capture_output=True, text=True, check=True).stdout.splitlines()


def cut(library: Path) -> None:
    """Zero the GPU code of other architectures and of kernels that no encoder calls: zeros compress to nothing.

    The entries stay. Emptied entries name another architecture: the driver then finds nothing for this GPU in such a
    container, which is common for containers.
    """
    listed = subprocess.run(("readelf", "-SW", str(library)), capture_output=True, text=True, check=True).stdout
    found = re.search(r"\.nv_fatbin\s+\w+\s+\w+\s+(\w+)\s+(\w+)", listed)
    if not found:
        raise ValueError(f"{library} has no GPU code")
    offset, size = (int(each, 16) for each in found.groups())
    data = bytearray(library.read_bytes())
    section = memoryview(data)[offset : offset + size]
    zstd = ctypes.CDLL("libzstd.so.1")
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    for entry in entries(section):
        start, head, code, architecture = entry
        if architecture == ARCHITECTURE:
            names = kernels(zstd, section, entry)
            if not names or not all(NO_ENCODER.search(name) for name in names):
                continue
            struct.pack_into("<I", section, start + 28, OTHER)
        section[start + head : start + head + code] = bytes(code)
    section.release()
    library.write_bytes(data)


def ort(prefix: Path, wheels: list[Path]) -> None:
    """Add ONNX Runtime with CUDA, cut to one architecture and to encoders; next to the environment, not in it."""
    scratch = prefix / "whole"
    install(wheels[0], scratch, wanted=ORT)
    (scratch / SITE).rename(prefix / "ort")
    shutil.rmtree(scratch)
    for pattern in NOT_ORT:
        for path in (prefix / "ort" / "onnxruntime" / "capi").glob(pattern):
            path.unlink()
    cut(prefix / "ort" / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so")


def main(words: list[str]) -> None:
    """See the module's text."""
    part, out, *wheels = words
    {"arlo": arlo, "triton": triton, "ort": ort}[part](Path(out), [Path(wheel) for wheel in wheels])


if __name__ == "__main__":
    main(sys.argv[1:])
