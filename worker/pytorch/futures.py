"""From the engine's futures to torch's."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch

from switchreduce.errors import SwitchReduceError


def torch_future(done: Future[Any], tensors: Sequence[torch.Tensor]) -> torch.futures.Future[Any]:
    """A torch future with the result or error of `done`, for C++ to wait for too; the result may have tensors
    on the devices of `tensors`.

    An error that Python sets is a value with a function to C++, which takes it for the result. Raised in a
    callback, it is an error there as well: a RuntimeError that quotes it.
    """
    devices = list({tensor.device for tensor in tensors if tensor.is_cuda})
    inner: torch.futures.Future[Any] = torch.futures.Future(devices=devices)

    def finish(done: Future[Any]) -> None:
        inner.set_result(None)  # whatever it came to: `outcome` tells

    def outcome(_: torch.futures.Future[Any]) -> Any:
        error = done.exception()
        if isinstance(error, SwitchReduceError):
            raise error.with_traceback(None)  # C++ quotes the trace too, and the message says it all
        return done.result()

    outer: torch.futures.Future[Any] = inner.then(outcome)
    done.add_done_callback(finish)
    return outer
