"""NumPy arrays in and out of Triton's tensors. Copied next to each model.py.

Triton's Python backend reads arrays by the memory layout of the NumPy that it was compiled for. For Triton 2.51 that is
NumPy 1. With NumPy 2 it reports no error, but every element of an input equals the first one, and outputs carry no
bytes. DLPack describes its own layout and gives the right numbers. It costs one more copy (25 us for 1.5 MB), so it is
used only where Triton misreads arrays. DLPack has no text: a model with text tensors needs numpy<2 there.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

# Triton renames a capsule that it has taken, but not to the standard's name; NumPy logs an error for any other name.
_TAKEN = b"used_dltensor"
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))


def to_triton(name: str, array: NDArray[Any]) -> Any:
    """Return a tensor `name` with the values of `array`. Raises TypeError for text that Triton would misread."""
    if _reads_arrays() or array.size == 0:
        return pb_utils.Tensor(name, array)
    return _by_dlpack(name, array)


def from_triton(tensor: Any) -> NDArray[Any]:
    """Return the values of `tensor`, an input of a request or an output of a response."""
    array: NDArray[Any] = tensor.as_numpy() if _reads_arrays() else np.array(np.from_dlpack(tensor))
    return array


def _by_dlpack(name: str, array: NDArray[Any]) -> Any:
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: this Triton misreads text of NumPy {np.__version__}: install numpy<2")
    # NumPy exports writable memory only. Reshaping gives axes of one element the strides that Triton checks for.
    array = np.require(array, requirements=["C", "W"]).reshape(-1).reshape(array.shape)
    capsule: Any = array.__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack(name, capsule)  # it keeps the array alive
    _set_name(capsule, _TAKEN)
    return tensor


@functools.cache
def _reads_arrays() -> bool:
    """Whether Triton reads and makes arrays of this NumPy rightly. Its tensors exist only once model.py is loaded."""
    return np.__version__.startswith("1.") or bool(_by_dlpack("probe", np.arange(2)).as_numpy()[1] == 1)
