"""torch.distributed's process group over the switch: the backend `switchreduce`.

Sums and means of floats and sums of int32 are added by the switch. Everything else (broadcast, gathering,
other dtypes and operations) moves raw bits through it (bits.py): a broadcast is a sum to which the root alone
contributes, a gathering one in which each rank has a range of its own; what the switch cannot add, each rank
reduces from the gathered bits, in the order of the ranks, so all get the same.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone  # Python 3.10's own, then the builtin
from dataclasses import replace
from datetime import timedelta
from functools import reduce
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from switchreduce.errors import RankLostError, UsageError
from switchreduce.worker.pytorch.bits import words_of, write_words
from switchreduce.worker.pytorch.futures import torch_future
from switchreduce.worker.pytorch.place import Options
from switchreduce.worker.pytorch.state import Allreduce, State
from switchreduce.worker.pytorch.tensors import SUMMABLE

NAME = "switchreduce"
DEVICES = ["cpu", "cuda"]
UNSUPPORTED = (
    "all_to_all_single", "alltoall", "alltoall_base", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "send",
    "recv", "recv_anysource", "scatter", "split_group", "merge_remote_group",
)  # fmt: skip

# what each rank can make of everybody's bits
COMBINE: tuple[tuple[Any, Callable[..., torch.Tensor]], ...] = (
    (dist.ReduceOp.SUM, torch.add),
    (dist.ReduceOp.PRODUCT, torch.mul),
    (dist.ReduceOp.MIN, torch.minimum),
    (dist.ReduceOp.MAX, torch.maximum),
    (dist.ReduceOp.BAND, torch.bitwise_and),
    (dist.ReduceOp.BOR, torch.bitwise_or),
    (dist.ReduceOp.BXOR, torch.bitwise_xor),
)


def register() -> None:
    """Make the backend known to torch.distributed."""
    if dist.is_available():
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=DEVICES)


def create(about: Any, options: Options | None) -> SwitchProcessGroup:
    """What torch.distributed calls for a group: `about` has its store, ranks and time-out."""
    options = options or Options()
    if not isinstance(options, Options):
        raise UsageError(f"pg_options of {NAME} are switchreduce.torch.Options, not {type(options).__name__}")
    if options.timeout is None:
        options = replace(options, timeout=about.timeout.total_seconds())
    job = common_job(about.store, about.group_id or "group", about.group_rank, about.group_size)
    return SwitchProcessGroup(State(options, job, about.group_rank, about.group_size), options)


def common_job(store: Any, group: str, rank: int, size: int) -> str:
    """A random name that rank 0 of a group tells the others.

    torchrun keeps a store beyond a restart, so the key says which start it is: by the count of restarts, and
    by how often all ranks have been here, for a group that is made again.
    """
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    turn = (store.add(f"arrived-{restart}", 1) - 1) // size
    key = f"job-{restart}-{turn}"
    if rank == 0:
        store.set(key, f"torch-{group}-{uuid.uuid4().hex[:16]}")
    return store.get(key).decode()


class SwitchWork(dist.Work):
    """One collective on its way; waiting for it raises its error as it is."""

    def __init__(self, done: Future[list[torch.Tensor]], tensors: list[torch.Tensor]) -> None:
        """The result of `done` is tensors where `tensors` are."""
        super().__init__()
        self._done = done
        self._future = torch_future(done, tensors)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds = timeout.total_seconds()
        try:
            self._done.result(seconds if seconds > 0 else None)
        except NotDone:
            raise RankLostError(f"a collective was not done after {seconds:g} s: is a rank late?") from None
        return True

    def is_completed(self) -> bool:
        return self._done.done()

    def is_success(self) -> bool:
        return self._done.done() and self._done.exception() is None

    def exception(self) -> Any:
        return self._done.exception() if self._done.done() else None

    def result(self) -> list[torch.Tensor]:
        return self._done.result()

    def get_future(self) -> torch.futures.Future[Any]:
        return self._future


class SwitchProcessGroup(dist.ProcessGroup):
    """A process group whose every collective is a call of one `State`."""

    def __init__(self, state: State, options: Options) -> None:
        super().__init__(state.rank, state.world_size)
        self.state = state
        self.options = options
        self._names = ["", ""]

    # what torch asks a group about

    def getBackendName(self) -> str:
        return NAME

    def getRank(self) -> int:
        return self.state.rank

    def getSize(self) -> int:
        return self.state.world_size

    def getGroupName(self) -> str:
        return self._names[0]

    def setGroupName(self, name: str) -> None:
        self._names[0] = name

    def getGroupDesc(self) -> str:
        return self._names[1]

    def setGroupDesc(self, text: str) -> None:
        self._names[1] = text

    @property
    def group_name(self) -> str:
        return self._names[0]

    def shutdown(self) -> None:
        self.state.close()

    def abort(self) -> None:
        self.state.close()

    # collectives; options are torch's, and absent where C++ leaves them out

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> SwitchWork:
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        return SwitchWork(self._reduce(tensors, op), tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[torch.Tensor], opts: Any) -> SwitchWork:
        """The switch tells all ranks; those that are not the root keep what they had."""
        if self.state.rank != opts.rootRank:
            tensors = [tensor.clone() for tensor in tensors]
        return SwitchWork(self._reduce(tensors, opts.reduceOp), tensors)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> SwitchWork:
        is_root = self.state.rank == opts.rootRank

        def work(allreduce: Allreduce) -> list[torch.Tensor]:
            for tensor in tensors:
                words = words_of(tensor)
                if not is_root:
                    words[:] = 0
                allreduce(words)
                if not is_root:
                    write_words(words, tensor)
            return tensors

        return SwitchWork(self.state.run(work), tensors)

    def allgather(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> SwitchWork:
        def work(allreduce: Allreduce) -> list[torch.Tensor]:
            for parts, tensor in zip(outputs, inputs, strict=True):
                for words, part in zip(self._gather(allreduce, tensor), parts, strict=True):
                    write_words(words, part)
            return [part for parts in outputs for part in parts]

        return SwitchWork(self.state.run(work), inputs)

    def allgather_coalesced(
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None
    ) -> SwitchWork:
        return self.allgather([list(of_all) for of_all in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> SwitchWork:
        return self.allgather([list(output.chunk(self.size()))], [tensor], opts)

    _allgather_base = all_gather_single

    def gather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any) -> SwitchWork:
        """The switch tells all ranks; those that are not the root drop it."""
        if self.state.rank != opts.rootRank:
            outputs = [[torch.empty_like(tensor) for _ in range(self.size())] for tensor in inputs]
        return self.allgather(outputs, inputs)

    def barrier(self, opts: Any = None) -> SwitchWork:
        def work(allreduce: Allreduce) -> list[torch.Tensor]:
            allreduce(np.ones(1, np.int32))
            return []

        return SwitchWork(self.state.run(work), [])

    # steps of these

    def _reduce(self, tensors: list[torch.Tensor], op: Any) -> Future[list[torch.Tensor]]:
        if any(tensor.is_sparse for tensor in tensors):
            return self._reduce_sparse(tensors, op)
        if op == dist.ReduceOp.AVG:
            return self.state.submit(tensors, "mean", tensors)
        if op == dist.ReduceOp.SUM and all(tensor.dtype in SUMMABLE for tensor in tensors):
            return self.state.submit(tensors, "sum", tensors)
        combine = next((function for kind, function in COMBINE if op == kind), None)
        if combine is None:
            raise UsageError(
                f"the backend {NAME} has no {op}: use another process group, of gloo say, for it"
            )

        def work(allreduce: Allreduce) -> list[torch.Tensor]:
            for tensor in tensors:
                parts = []
                for words in self._gather(allreduce, tensor):
                    parts.append(torch.empty_like(tensor))
                    write_words(words, parts[-1])
                tensor.detach().copy_(reduce(combine, parts))
            return tensors

        return self.state.run(work)

    def _reduce_sparse(self, tensors: list[torch.Tensor], op: Any) -> Future[list[torch.Tensor]]:
        if len(tensors) > 1 or not (op == dist.ReduceOp.SUM or op == dist.ReduceOp.AVG):
            raise UsageError(f"the backend {NAME} has SUM and AVG of one sparse tensor a call, and no more")
        (tensor,) = tensors

        def finish(result: torch.Tensor) -> list[torch.Tensor]:
            tensor.copy_(result)
            return tensors

        return self.state.submit_sparse(tensor, "sum" if op == dist.ReduceOp.SUM else "mean", finish)

    def _gather(self, allreduce: Allreduce, tensor: torch.Tensor) -> list[np.ndarray]:
        """Every rank's `tensor`, of the same size and dtype on all, as words."""
        words = words_of(tensor)
        everyone = np.zeros((self.size(), words.size), np.int32)
        everyone[self.rank()] = words
        allreduce(everyone)
        return list(everyone)


def _refuse(name: str) -> Callable[..., Any]:
    def refuse(self: SwitchProcessGroup, *_: Any, **__: Any) -> Any:
        raise UsageError(f"the backend {NAME} has no {name}: use another process group, of gloo say, for it")

    refuse.__name__ = name
    return refuse


for _name in UNSUPPORTED:
    setattr(SwitchProcessGroup, _name, _refuse(_name))
