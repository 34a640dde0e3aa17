"""DDP's communication hook (https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html)."""

import torch
import torch.distributed as dist

from switchreduce.worker.pytorch.state import State

# no `from __future__ import annotations` here: DDP compares the hook's annotations with the classes


def allreduce_hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket of gradients over the ranks, while the backward pass goes on.

    For ``model.register_comm_hook(state, allreduce_hook)``. DDP hands over the buckets in the same order on
    all ranks. A rank that is lost makes the backward pass of the others raise RuntimeError with its name.
    """
    gradients = bucket.buffer()
    if gradients.is_sparse:  # of nn.Embedding(sparse=True), say: a bucket of its own
        return state.allreduce_sparse(gradients, "mean")
    return state.allreduce(gradients, "mean")
