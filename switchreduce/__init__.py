"""Lossless compressed allreduce of gradients inside a P4 switch.

>>> from switchreduce import Communicator
>>> with Communicator.connect("127.0.0.1:9560", job="train", rank=0, world_size=4) as c:
...     c.allreduce(gradient)
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from switchreduce.compile_cache import give_numba_a_place

if TYPE_CHECKING:
    from switchreduce.worker.communicator import CallReport, Communicator
    from switchreduce.worker.sparse import SparseArray

give_numba_a_place()

# Else gRPC's own handlers run in every process that is forked from a rank, a data loader's workers say, and
# crash some of them (grpcio 1.85: every other time with a job joined). A forked process is not the rank and
# does not use gRPC.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = "0.1.0"

__all__ = ["CallReport", "Communicator", "SparseArray", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the API when it is first used: numba and gRPC take a second, which the command line's help need
    not wait for."""
    if name in ("CallReport", "Communicator"):
        from switchreduce.worker import communicator

        return getattr(communicator, name)
    if name == "SparseArray":
        from switchreduce.worker import sparse

        return sparse.SparseArray
    if name == "torch":  # the module of this package, which needs PyTorch
        return importlib.import_module("switchreduce.torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
