"""All that knows PyTorch; users reach it as `switchreduce.torch`. Importing it registers the backend."""

from __future__ import annotations

import importlib.util

from switchreduce.errors import MissingPackageError

if importlib.util.find_spec("torch") is None:
    raise MissingPackageError("switchreduce.torch needs PyTorch: pip install 'switchreduce[torch]'")

from switchreduce.worker.pytorch.backend import register
from switchreduce.worker.pytorch.hook import allreduce_hook
from switchreduce.worker.pytorch.place import Options
from switchreduce.worker.pytorch.state import State, Totals, connect

__all__ = ["Options", "State", "Totals", "allreduce_hook", "connect"]

register()
