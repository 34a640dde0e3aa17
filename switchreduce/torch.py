"""PyTorch: a DDP communication hook and a process group backend, `switchreduce`.

>>> import switchreduce.torch
>>> state = switchreduce.torch.connect()  # in a process that torchrun started
>>> model.register_comm_hook(state, switchreduce.torch.allreduce_hook)

or, in a script that stays as it is otherwise, ``torch.distributed.init_process_group("switchreduce")``.
"""

from switchreduce.worker.pytorch import Options, State, Totals, allreduce_hook, connect

__all__ = ["Options", "State", "Totals", "allreduce_hook", "connect"]
