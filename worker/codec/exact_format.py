"""The floating-point formats that the exact codec takes, as the numbers its loops are written in."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from switchreduce.errors import UsageError


@dataclass(frozen=True)
class FloatFormat:
    """A binary interchange format (IEEE 754-2019, 3.4), or bfloat16, which is built alike.

    ``bits_type``: unsigned integer of the format's width. ``precision``: bits of the significand, the
    implicit one included. ``exponent_bits``: width of the exponent field.

    A *position* counts bits from the smallest subnormal: a finite value is an integer multiple of
    2**minimum below 2**(minimum + positions).
    """

    bits_type: Any
    precision: int
    exponent_bits: int

    @property
    def minimum(self) -> int:
        """Exponent of the smallest subnormal: -149 for float32."""
        return 3 - (1 << self.exponent_bits - 1) - self.precision

    @property
    def positions(self) -> int:
        """Bits from the smallest subnormal's to the largest finite value's highest: 277 for float32."""
        return (1 << self.exponent_bits) - 3 + self.precision

    @property
    def infinity(self) -> int:
        """The bits of positive infinity; finite magnitudes' are smaller, in the order of their values."""
        return ((1 << self.exponent_bits) - 1) << self.precision - 1


_FORMATS = {
    "float16": FloatFormat(np.uint16, 11, 5),
    "bfloat16": FloatFormat(np.uint16, 8, 8),  # by name: NumPy has no such dtype, ml_dtypes adds it
    "float32": FloatFormat(np.uint32, 24, 8),
    "float64": FloatFormat(np.uint64, 53, 11),
}


def format_of(dtype: Any) -> FloatFormat:
    """The format of a float dtype. Raises UsageError for others."""
    dtype = np.dtype(dtype)
    if dtype.name not in _FORMATS or not dtype.isnative:
        names = ", ".join(_FORMATS)
        raise UsageError(f"dtype {dtype} is not one of {names} in native byte order; convert the array")
    return _FORMATS[dtype.name]


def bits_view(x: NDArray[Any]) -> NDArray[Any]:
    """The array's bits as unsigned integers.

    Raises UsageError unless ``x`` is a contiguous, aligned 1-D array of a dtype that the codec takes.
    """
    bits_type = format_of(x.dtype).bits_type
    if x.ndim != 1 or not x.flags.c_contiguous or not x.flags.aligned:
        raise UsageError("the codec takes a contiguous, aligned 1-D array; pass x.reshape(-1) of a copy")
    return x.view(bits_type)
