"""What rank processes do in the tests; each function runs on all ranks at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import switchreduce.torch
from switchreduce.torch import Options, allreduce_hook
from tests.torch.ranks import Place


@contextmanager
def connected(place: Place, **how: Any) -> Iterator[Any]:
    with switchreduce.torch.connect(
        place.controller, place.job, place.rank, place.world_size, **how
    ) as state:
        yield state


@contextmanager
def switch_group(place: Place, **how: Any) -> Iterator[Any]:
    """A process group of all ranks over the switch."""
    options = Options(controller=place.controller, **how)
    group = dist.new_group(backend="switchreduce", pg_options=options)
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


class Model(nn.Module):
    """Layers of random sizes, one of which takes part in every other step only."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        sizes = [4, *torch.randint(1, 90, (3,)).tolist(), 3]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.sometimes = nn.Linear(4, 3)
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        extra = self.sometimes(x) if self.step % 2 else 0
        for layer in self.layers:
            x = torch.relu(layer(x)) if layer is not self.layers[-1] else layer(x)
        return x + extra


def train(model: nn.Module, rank: int, steps: int = 4) -> np.ndarray:
    """Two parameter groups; returns all parameters in a row."""
    first, *others = model.parameters()
    optimiser = torch.optim.SGD([{"params": [first], "lr": 0.05}, {"params": others}], lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1000 + rank)
    for _ in range(steps):
        x = torch.randn(16, 4, generator=generator)
        optimiser.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimiser.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()


def ddp(model: nn.Module, **how: Any) -> DistributedDataParallel:
    """With buckets so small that there are several."""
    return DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=0.005, **how)


def train_with_hook(place: Place, seeds: list[int], codec: str) -> list[np.ndarray]:
    with connected(place, codec=codec) as state:
        parameters = []
        for seed in seeds:
            model = ddp(Model(seed), gradient_as_bucket_view=seed % 2 == 0)
            model.register_comm_hook(state, allreduce_hook)
            parameters.append(train(model, place.rank))
        assert state.totals.calls > 4 * len(seeds), "several buckets a step"
        return parameters


def train_with_backend(place: Place, seeds: list[int]) -> list[np.ndarray]:
    with switch_group(place) as group:
        parameters = []
        for seed in seeds:
            model = Model(seed)
            if place.rank:  # DDP makes rank 0's parameters everyone's
                for parameter in model.parameters():
                    nn.init.constant_(parameter, place.rank)
            parameters.append(train(ddp(model, process_group=group), place.rank))
        return parameters


def train_with_gloo(place: Place, seeds: list[int]) -> list[np.ndarray]:
    return [train(ddp(Model(seed)), place.rank) for seed in seeds]


def reduced_gradient(place: Place, dtype: torch.dtype, codec: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(this rank's gradient, the mean that DDP makes of all)."""
    with connected(place, codec=codec) as state:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 2)).to(dtype)
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(state, allreduce_hook)
        x = torch.randn(32, 6, generator=torch.Generator().manual_seed(place.rank)).to(dtype)
        gradients = []
        for module in (model, parallel):
            module.zero_grad()
            module(x).square().sum().backward()
            gradients.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]).clone())
        return gradients[0], gradients[1]


def scale_gradients(place: Place) -> list[tuple[float, float]]:
    """(scale, a parameter) after each of three steps of mixed precision; the second overflows on rank 1."""
    with connected(place) as state:
        torch.manual_seed(3)
        model = DistributedDataParallel(nn.Linear(3, 1))
        model.register_comm_hook(state, allreduce_hook)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        after = []
        for step in range(3):
            optimiser.zero_grad()
            loss = model(torch.ones(2, 3)).sum()
            scaler.scale(loss * (3e38 if step == 1 and place.rank == 1 else 1.0)).backward()
            scaler.step(optimiser)
            scaler.update()
            after.append((scaler.get_scale(), model.module.weight[0, 0].item()))
        return after


def tensors_of_all_kinds(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    bits = torch.randint(-(2**63), 2**63 - 1, (23,), generator=generator)
    return [
        bits,
        bits.view(torch.int32)[:7],
        bits.view(torch.uint8)[:5],
        bits.view(torch.float32),  # NaNs of all kinds among them
        bits.view(torch.bfloat16)[1:].reshape(7, 13),
        bits.view(torch.float16)[:1].reshape(()),
        bits > 0,
        torch.complex(torch.randn(3, generator=generator), torch.ones(3)),
        torch.randn(4, 6, generator=generator).t(),
        torch.empty(0, 3),
    ]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    a, b = (each.contiguous().reshape(-1).view(torch.uint8) for each in (a, b))
    return torch.equal(a, b)


def move_bits(place: Place) -> None:
    """broadcast, all_gather, gather and their forms for objects, against what each rank is known to have."""
    of_all = [tensors_of_all_kinds(rank) for rank in range(place.world_size)]
    with switch_group(place) as group:
        for number in range(len(of_all[0])):
            mine = of_all[place.rank][number]
            received = mine.clone()
            dist.broadcast(received, src=1, group=group)
            assert same_bits(received, of_all[1][number])
            everyone = [torch.empty_like(mine) for _ in range(place.world_size)]
            dist.all_gather(everyone, mine, group=group)
            assert all(same_bits(got, each[number]) for got, each in zip(everyone, of_all, strict=True))
        whole = torch.empty(2 * place.world_size, 3)
        dist.all_gather_into_tensor(whole, torch.full((2, 3), float(place.rank)), group=group)
        assert whole[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
        objects: list[Any] = [None] * place.world_size
        dist.all_gather_object(objects, {"rank": place.rank, "text": "x" * 100 * place.rank}, group=group)
        assert [each["rank"] for each in objects] == [0, 1, 2]
        told = ["from", 2] if place.rank == 2 else [None, None]
        dist.broadcast_object_list(told, src=2, group=group)
        assert told == ["from", 2]
        collected = [None] * place.world_size if place.rank == 0 else None
        dist.gather_object(place.rank**2, collected, dst=0, group=group)
        assert place.rank or collected == [0, 1, 4]


def reduce_tensors(place: Place) -> None:
    """all_reduce and reduce of what the switch adds and of what it does not, against Gloo."""
    with switch_group(place) as group:
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8):
                tensor = (torch.arange(1, 9) * (place.rank + 1)).to(dtype)
                expected = tensor.clone()
                dist.all_reduce(expected, op)
                dist.all_reduce(tensor, op, group=group)
                assert torch.equal(tensor, expected), (op, dtype)
        for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
            tensor = torch.tensor([place.rank + 1, 7])
            expected = tensor.clone()
            dist.all_reduce(expected, op)
            dist.all_reduce(tensor, op, group=group)
            assert torch.equal(tensor, expected), op
        tensor = torch.full((3,), float(place.rank))
        dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
        assert tensor.tolist() == [1.0] * 3
        tensor = torch.full((3,), float(place.rank))
        dist.reduce(tensor, dst=1, group=group)
        assert tensor.tolist() == [3.0 if place.rank == 1 else float(place.rank)] * 3
        works = [dist.all_reduce(torch.ones(5), group=group, async_op=True) for _ in range(4)]
        assert all(work.wait() and work.is_success() for work in works)
        assert all(work.result()[0].tolist() == [3.0] * 5 for work in works)
        dist.barrier(group=group)


def refused_operations(place: Place) -> list[str]:
    """Messages of what the backend cannot do; the group works afterwards."""
    messages = []
    with switch_group(place) as group:
        for call in (
            lambda: dist.send(torch.ones(1), (place.rank + 1) % place.world_size, group=group),
            lambda: dist.reduce_scatter_tensor(torch.ones(1), torch.ones(place.world_size), group=group),
            lambda: dist.all_to_all_single(torch.ones(3), torch.ones(3), group=group),
            lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG, group=group),
            lambda: dist.all_reduce(torch.full((1,), 2**31 - 1, dtype=torch.int32), group=group),
            lambda: dist.all_reduce(torch.ones(3 + place.rank), group=group),
        ):
            try:
                call()
                messages.append("nothing was raised")
            except Exception as error:
                messages.append(f"{type(error).__name__}: {error}")
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [3.0, 3.0]
    return messages


class Embedder(nn.Module):
    """A sparse table beside dense layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.EmbeddingBag(5000, 24, sparse=True, mode="sum")
        self.layer = nn.Linear(24, 1)

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(items))


def train_embedding(place: Place, way: str) -> tuple[np.ndarray, int]:
    """(all parameters after some steps, bytes that this rank sent)."""
    with connected(place) as state, switch_group(place) as group:
        model = DistributedDataParallel(Embedder(), process_group=group if way == "backend" else None)
        if way == "hook":
            model.register_comm_hook(state, allreduce_hook)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(place.rank)
        for _ in range(3):
            items = torch.randint(0, 5000, (20, 4), generator=generator)
            optimiser.zero_grad()
            model(items).square().mean().backward()
            assert model.module.table.weight.grad.is_sparse
            optimiser.step()
        parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
        return parameters, state.totals.bytes_sent


def sum_sparse(place: Place) -> None:
    """Indices of several dimensions and doubled ones, no values, several dtypes; against dense sums."""
    rank = place.rank
    with connected(place) as state, switch_group(place) as group:
        for dtype in (torch.float32, torch.bfloat16, torch.int32):
            indices = [torch.tensor([[0, 3, 3], [r, 2, 2]]) for r in range(place.world_size)]
            values = torch.arange(6).reshape(3, 2).to(dtype)
            shape = (4, 3, 2)
            of_all = [torch.sparse_coo_tensor(i, values * (r + 1), shape) for r, i in enumerate(indices)]
            expected = sum(each.to_dense() for each in of_all)
            total = state.allreduce_sparse(of_all[rank]).wait()
            assert total.is_sparse
            assert total.dtype == dtype
            assert torch.equal(total.to_dense(), expected)
            dist.all_reduce(of_all[rank], group=group)
            assert torch.equal(of_all[rank].to_dense(), expected)
        nothing = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), torch.empty(0), (10**8,))
        assert state.allreduce_sparse(nothing).wait()._nnz() == 0


def raise_nonfinite(place: Place) -> str:
    with connected(place, nonfinite="raise") as state:
        model = DistributedDataParallel(nn.Linear(3, 1))
        model.register_comm_hook(state, allreduce_hook)
        try:
            model(torch.full((1, 3), float("inf") if place.rank == 2 else 1.0)).sum().backward()
        except RuntimeError as error:
            return str(error)
    return "nothing was raised"


def die_in_backward(place: Place) -> tuple[float, str]:
    """Rank 1 dies before its third backward pass; the others' (seconds until theirs raised, what)."""
    with connected(place) as state:
        model = DistributedDataParallel(nn.Linear(50, 50))
        model.register_comm_hook(state, allreduce_hook)
        for _ in range(2):  # in the second forward pass, DDP orders its buckets, by Gloo
            model(torch.ones(2, 50)).sum().backward()
        loss = model(torch.ones(2, 50)).sum()
        started = time.monotonic()
        if place.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            loss.backward()
        except RuntimeError as error:
            return time.monotonic() - started, str(error)
    return time.monotonic() - started, "nothing was raised"
