"""What a call asks for: the words that ranks must agree on, and the checks of its arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.worker.sparse import SparseArray
from switchreduce.worker.stream import DTYPES

OPS = ("sum", "mean")
NONFINITE = ("raise", "propagate")
CODECS = ("auto", "packed", "sketch", "exact", "dense")

Arrays: TypeAlias = "np.ndarray | Sequence[np.ndarray] | SparseArray"


@dataclass(frozen=True)
class CallSpec:
    """What the ranks must agree on."""

    number: int  # of the call in the job
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    op: str
    codec: str
    nonfinite: str = "raise"
    flushing: bool = False  # this thread's floating point takes subnormals for 0: its results could differ

    def __str__(self) -> str:
        shapes = str(self.shapes[0]) if len(self.shapes) == 1 else f"[{', '.join(map(str, self.shapes))}]"
        how = f"with codec {self.codec}"
        if self.nonfinite != "raise":
            how += ", NaN and infinity too,"
        if self.flushing:
            how += ", subnormals flushed to zero (by torch.set_flush_denormal or a library's -ffast-math),"
        return f"{self.op} of {self.dtype} {shapes} {how} as call {self.number}"

    @property
    def kind(self) -> tuple[object, ...]:
        """Calls of one kind are likely to be alike: in training, the same layers again and again."""
        return (self.dtype, self.shapes, self.op, self.codec, self.nonfinite)

    def fingerprint(self) -> np.ndarray:
        """uint32 (2,)."""
        return np.frombuffer(
            hashlib.blake2b(str(self).encode(errors="replace"), digest_size=8).digest(), np.uint32
        )


def arrays_of(x: Arrays) -> list[Any]:
    """The arrays that a call is for; whether they can be is for check_arguments to say."""
    return list(x) if isinstance(x, (list, tuple)) and x else [x]


def describe_call(number: int, arrays: list[Any], op: str, codec: str, nonfinite: str = "raise") -> CallSpec:
    """What the ranks compare, for anything that a caller may pass."""
    kinds = (np.ndarray, SparseArray)
    names = {str(a.dtype) if isinstance(a, kinds) else type(a).__name__ for a in arrays}
    shapes = tuple(a.shape if isinstance(a, kinds) else () for a in arrays)
    return CallSpec(number, " and ".join(sorted(names)), shapes, op, codec, nonfinite, flushes_subnormals())


def flushes_subnormals() -> bool:
    """Whether this thread's processor takes subnormals for 0, as operands or as results (x86: MXCSR)."""
    with np.errstate(all="ignore"):
        tiny = np.array([2.0**-126, 2.0**-149], np.float32) * np.array([0.5, 2.0**30], np.float32)
    return bool((tiny == 0).any())


def check_arguments(x: Any, spec: CallSpec) -> SwitchReduceError | None:
    """What is wrong with a call's arguments, or None."""
    arrays = [x.values] if isinstance(x, SparseArray) else arrays_of(x)
    for array in arrays:
        if not isinstance(array, np.ndarray):
            what = type(x).__name__ if array is x else f"{type(x).__name__} of {type(array).__name__}"
            return UsageError(f"allreduce takes a NumPy array or a list of them, not {what}")
        problem = _check_array(array)
        if problem is not None:
            return problem
    if len({array.dtype for array in arrays}) > 1:
        names = ", ".join(sorted({str(array.dtype) for array in arrays}))
        return UsageError(f"the arrays of one call must have one dtype, not {names}: make a call for each")
    for name, value, known in (
        ("op", spec.op, OPS),
        ("codec", spec.codec, CODECS),
        ("nonfinite", spec.nonfinite, NONFINITE),
    ):
        if not isinstance(value, str) or value not in known:
            return UsageError(f"{name} {value!r} is unknown: choose from {', '.join(known)}")
    if isinstance(x, SparseArray) and (problem := x.problem()) is not None:
        return problem
    if spec.op == "mean" and arrays[0].dtype.kind == "i":
        return UsageError("the mean of integers is not an integer: use op='sum' or a float array")
    return None


def _check_array(array: np.ndarray) -> SwitchReduceError | None:
    if isinstance(array, np.ma.MaskedArray):
        return UsageError("allreduce would add masked elements too: pass x.filled(0), or x.data as it is")
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        names = ", ".join(DTYPES)
        return UsageError(f"dtype {array.dtype} is not supported: convert to one of {names} in native order")
    if not array.flags.writeable:
        return UsageError("the array is read-only, and allreduce works in place: pass a copy")
    return None
