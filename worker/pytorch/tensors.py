"""A tensor as a NumPy array that a call changes, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from switchreduce.errors import UsageError
from switchreduce.worker.sparse import SparseArray

try:
    from ml_dtypes import bfloat16
except ImportError:  # then by way of float32, rounded twice
    bfloat16 = None

# that the switch adds
SUMMABLE = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32)


class Staged:
    """One tensor of SUMMABLE on its way: `read` in the engine's thread, the call on `array`, `write`.

    On the CPU, `array` is the tensor's own memory (bfloat16 seen as ml_dtypes' type, where that is
    installed). A CUDA tensor is copied to pinned memory and back on a stream of its own, behind what the
    current stream has queued for it; nobody has run that path yet.
    """

    array: np.ndarray

    def __init__(self, tensor: torch.Tensor) -> None:
        """Called where the tensor was made, so that its stream is the current one. Raises UsageError."""
        if tensor.dtype not in SUMMABLE:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in SUMMABLE)
            raise UsageError(f"{tensor.dtype} is not summed by the switch: convert to one of {names}")
        if tensor.device.type not in ("cpu", "cuda"):
            raise UsageError(f"a tensor on {tensor.device} cannot be summed: move it to the CPU or to CUDA")
        self._tensor = tensor.detach()
        self._event: Any = None
        if tensor.is_cuda:
            self._event = torch.cuda.current_stream(tensor.device).record_event()

    def read(self) -> None:
        host = self._tensor
        if host.is_cuda:
            self._pinned = torch.empty(host.shape, dtype=host.dtype, pin_memory=True)
            self._on_side_stream(lambda: self._pinned.copy_(self._tensor, non_blocking=True))
            host = self._pinned
        self._host = host
        if host.dtype != torch.bfloat16:
            self.array = host.numpy()
        elif bfloat16 is not None:
            self.array = host.view(torch.int16).numpy().view(bfloat16)
        else:
            self.array = host.float().numpy()

    def write(self) -> None:
        if self._host.dtype == torch.bfloat16 and bfloat16 is None:
            self._host.copy_(torch.from_numpy(self.array))
        if self._tensor.is_cuda:
            self._on_side_stream(lambda: self._tensor.copy_(self._pinned, non_blocking=True))

    def _on_side_stream(self, copy: Callable[[], Any]) -> None:
        stream = torch.cuda.Stream(self._tensor.device)
        stream.wait_event(self._event)
        with torch.cuda.stream(stream):
            copy()
        stream.synchronize()


class StagedSparse:
    """The same for a sparse COO tensor; `write` gives a new tensor, as ranks have other rows."""

    array: SparseArray

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.sparse_coo:
            raise UsageError(f"a tensor of layout {tensor.layout} is not summed: use sparse_coo or strided")
        self._tensor = tensor.detach().coalesce()
        self._values = Staged(self._tensor.values().contiguous())
        split = self._tensor.sparse_dim()
        self._outer, self._inner = tuple(tensor.shape[:split]), tuple(tensor.shape[split:])

    def read(self) -> None:
        self._values.read()
        indices = self._tensor.indices().cpu().numpy()
        rows = np.ravel_multi_index(tuple(indices), self._outer).astype(np.int64)
        values = self._values.array.reshape(rows.size, math.prod(self._inner))
        self.array = SparseArray(rows, values, math.prod(self._outer))

    def write(self) -> torch.Tensor:
        indices = torch.from_numpy(np.stack(np.unravel_index(self.array.rows, self._outer)))
        like, values = self._tensor, self.array.values.reshape(-1, *self._inner)
        shape = tuple(like.shape)
        whole = torch.sparse_coo_tensor(
            indices, as_tensor(values, like.dtype), shape, check_invariants=False, is_coalesced=True
        )
        return whole.to(like.device)


def as_tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of `dtype` over an array that `Staged.array` could be."""
    if dtype == torch.bfloat16 and bfloat16 is not None:
        return torch.from_numpy(array.view(np.int16)).view(dtype)
    return torch.from_numpy(array).to(dtype)
