"""Array types, block geometry and scratch memory that the codec's steps share."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from switchreduce.errors import UsageError
from switchreduce.worker.codec.kernels import WORD

Lanes: TypeAlias = NDArray[np.uint32]  # native byte order; the transport swaps
Values: TypeAlias = NDArray[Any]  # float32, float64 or int32 coordinates

DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int32))

BLOCK = 1 << 18  # coordinates: 1 MB of float32, and |U| large enough to peel near the threshold
BLOCK_MULTIPLE = 32 * 64  # a block's index fills whole 64-lane packets
MAX_BLOCK = 1 << 22  # beyond, the hash's 16-bit fields would fill segments unevenly


def block_count(size: int, block: int = BLOCK) -> int:
    """Number of blocks of an array of ``size`` coordinates; the last one may be shorter."""
    if block <= 0 or block % BLOCK_MULTIPLE or block > MAX_BLOCK:
        raise UsageError(f"block size {block} is not a multiple of {BLOCK_MULTIPLE} up to {MAX_BLOCK}")
    return -(-size // block)


def index_lanes(size: int) -> int:
    """Lanes of the index of a block of ``size`` coordinates: one bit each."""
    return -(-size // WORD)


def check_values(x: Values) -> None:
    """Raise UsageError unless ``x`` is one-dimensional, contiguous and of a dtype the codec takes."""
    if x.dtype not in DTYPES or not x.dtype.isnative:
        names = ", ".join(str(dtype) for dtype in DTYPES)
        raise UsageError(f"dtype {x.dtype} is not one of {names} in native byte order; convert the array")
    if x.ndim != 1 or not x.flags.c_contiguous or not x.flags.aligned:
        raise UsageError("the codec takes a contiguous, aligned 1-D array; pass x.reshape(-1) of a copy")


def check_lanes(name: str, lanes: NDArray[Any], dtype: Any, size: int) -> None:
    """Raise UsageError unless ``lanes`` is a contiguous 1-D array of ``size`` elements of ``dtype``."""
    if lanes.dtype != dtype or lanes.shape != (size,) or not lanes.flags.c_contiguous:
        raise UsageError(
            f"{name} must be a contiguous array of {size} {np.dtype(dtype)}, got {lanes.shape} {lanes.dtype}"
        )


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: numba compiles one variant of a kernel for inputs that are writable or not."""
    view = array.view()
    view.flags.writeable = False
    return view


class Workspace:
    """Scratch arrays that grow to the largest block seen and are then reused; one per thread.

    Nothing in here outlives the call that took it, so results never depend on a workspace's history.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def take(self, name: str, dtype: Any, size: int) -> NDArray[Any]:
        """``size`` uninitialised elements of ``dtype``, valid until the next take of the same name."""
        array = self._arrays.get(name)
        if array is None or array.size < size:
            array = self._arrays[name] = np.empty(size, dtype)
        return array[:size]
