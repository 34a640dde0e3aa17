"""A tensor as a NumPy array that a call changes, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from switchreduce.errors import UsageError

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
