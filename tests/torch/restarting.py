"""A training script as users write it, for torchrun; rank 1 dies in the first attempt."""

import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import switchreduce.torch

dist.init_process_group("cpu:switchreduce")
model = DistributedDataParallel(nn.Linear(4, 2))
optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
with switchreduce.torch.connect() as state:
    model.register_comm_hook(state, switchreduce.torch.allreduce_hook)
    for step in range(3):
        if step == 1 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        optimiser.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimiser.step()
    gradient = model.module.weight.grad.tolist()
dist.destroy_process_group()
print(f"done, {gradient}", flush=True)
