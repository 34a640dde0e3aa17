"""One rank's part in a job, as PyTorch sees it: calls on tensors that give futures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist

from switchreduce.worker.calls import Arrays, arrays_of
from switchreduce.worker.codec import warm_up_exact
from switchreduce.worker.communicator import CallReport, Communicator
from switchreduce.worker.pytorch.engine import Engine
from switchreduce.worker.pytorch.futures import torch_future
from switchreduce.worker.pytorch.place import JOIN_TIMEOUT, Options, job_name, number_from
from switchreduce.worker.pytorch.tensors import Staged, StagedSparse

TIMEOUT = 1800.0  # seconds; torch's own default for a process group

Allreduce: TypeAlias = Callable[..., None]  # `Communicator.allreduce`
Result = TypeVar("Result")


@dataclass(frozen=True)
class Totals:
    """What all calls so far cost this rank. ``dense_bytes``: of the tensors, as they are in memory."""

    calls: int = 0
    dense_bytes: int = 0
    bytes_sent: int = 0
    retransmits: int = 0
    seconds: float = 0.0

    def plus(self, report: CallReport, dense_bytes: int) -> Totals:
        return Totals(
            self.calls + 1,
            self.dense_bytes + dense_bytes,
            self.bytes_sent + report.bytes_sent,
            self.retransmits + report.retransmits,
            self.seconds + report.seconds,
        )


def connect(
    controller: str | None = None,
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    codec: str | None = None,
    nonfinite: str = "propagate",
    minimise: str = "time",
    slots: int = 0,
    join_timeout: float = JOIN_TIMEOUT,
    timeout: float | None = None,
) -> State:
    """Join a job and wait for all ranks; what is not given comes from torchrun's environment.

    `rank` and `world_size` are the default process group's, if there is one, else RANK and WORLD_SIZE. `job`
    is named after TORCHELASTIC_RUN_ID (or MASTER_ADDR and MASTER_PORT) and TORCHELASTIC_RESTART_COUNT; a
    process that connects more than once must name its jobs. The rest is explained in `Options`.

    Raises UsageError where something is missing, and what `Communicator.connect` raises.
    """
    options = Options(controller, codec, nonfinite, minimise, slots, join_timeout, timeout)
    in_group = dist.is_available() and dist.is_initialized()
    if rank is None:
        rank = dist.get_rank() if in_group else number_from("RANK")
    if world_size is None:
        world_size = dist.get_world_size() if in_group else number_from("WORLD_SIZE")
    return State(options, job or job_name(), rank, world_size)


class State:
    """A rank of a job. All ranks must make the same calls in the same order. Use it as a context manager, or
    close it; the end of the process closes it too."""

    def __init__(self, options: Options, job: str, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.codec = options.codec_name()
        self.nonfinite = options.nonfinite
        self.totals = Totals()
        if self.codec == "exact":
            warm_up_exact()  # compiling in the first call would have the other ranks wait
        self._engine = Engine(
            Communicator.connect(
                options.controller_address(),
                job=job,
                rank=rank,
                world_size=world_size,
                slots=options.slots,
                minimise=options.minimise,
                timeout=options.join_timeout,
                stall_timeout=TIMEOUT if options.timeout is None else options.timeout,
            )
        )

    def allreduce(self, tensor: torch.Tensor, op: str = "sum") -> torch.futures.Future[torch.Tensor]:
        """Replace `tensor` by its sum or mean over ranks, in place; the future's value is the tensor.

        float32, float64, float16, bfloat16 or int32 (sum only), on the CPU or CUDA. What it raises for an
        argument is UsageError; the future raises what `Communicator.allreduce` does, to C++ (a backward pass)
        as a RuntimeError with the same text.
        """
        return torch_future(self.submit([tensor], op, tensor), [tensor])

    def allreduce_sparse(self, tensor: torch.Tensor, op: str = "sum") -> torch.futures.Future[torch.Tensor]:
        """The sum or mean over ranks of a sparse COO tensor, as a new one that is coalesced.

        The ranks need not have the same indices. Rows that come out as zeros are left out. Nothing of the
        tensor's dense size is made, on the way neither. dtypes and errors are those of `allreduce`.
        """
        return torch_future(self.submit_sparse(tensor, op, lambda result: result), [tensor])

    def submit_sparse(
        self, tensor: torch.Tensor, op: str, finish: Callable[[torch.Tensor], Result]
    ) -> Future[Result]:
        """Queue one call for a sparse COO tensor; the future's result is what `finish` makes of the sum."""
        staged = StagedSparse(tensor)

        def work(allreduce: Allreduce) -> Result:
            staged.read()
            allreduce(staged.array, op=op, codec=self.codec, nonfinite=self.nonfinite)
            return finish(staged.write())

        return self.run(work)

    def submit(self, tensors: Sequence[torch.Tensor], op: str, value: Result) -> Future[Result]:
        """Queue one call for tensors of one dtype, which change in place; the future's result is `value`."""
        staged = [Staged(tensor) for tensor in tensors]

        def work(allreduce: Allreduce) -> Result:
            for each in staged:
                each.read()
            allreduce([each.array for each in staged], op=op, codec=self.codec, nonfinite=self.nonfinite)
            for each in staged:
                each.write()
            return value

        return self.run(work)

    def run(self, work: Callable[[Allreduce], Result]) -> Future[Result]:
        """Queue `work`, which makes calls by the function that it is given: `Communicator.allreduce`."""

        def counted(communicator: Communicator) -> Result:
            def allreduce(arrays: Arrays, **how: Any) -> None:
                report = communicator.allreduce(arrays, **how)
                self.totals = self.totals.plus(report, sum(array.nbytes for array in arrays_of(arrays)))

            return work(allreduce)

        return self._engine.submit(counted)

    def close(self) -> None:
        """Leave the job. The other ranks can still finish the calls that this rank has finished."""
        self._engine.close()

    def __enter__(self) -> State:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
