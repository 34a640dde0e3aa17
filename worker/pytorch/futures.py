"""From the engine's futures to torch's."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch


def torch_future(done: Future[Any], devices: Sequence[torch.device] = ()) -> torch.futures.Future[Any]:
    """A torch future with the result or error of `done`, for C++ to wait for too.

    An error that Python sets is a value with a function to C++, which takes it for the result. Raised in a
    callback, it is an error there as well: a RuntimeError that quotes it.
    """
    inner: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))

    def finish(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            inner.set_result(done.result())
        elif isinstance(error, Exception):
            inner.set_exception(error)
        else:
            inner.set_exception(RuntimeError(repr(error)))

    outer: torch.futures.Future[Any] = inner.then(lambda future: future.value())
    done.add_done_callback(finish)
    return outer
