"""Train a convolutional network data parallel, over the switch or over Gloo.

A small VGG (Simonyan & Zisserman 2014, https://arxiv.org/abs/1409.1556: pairs of 3x3 convolutions between
poolings) on the 1,797 handwritten digits of 8x8 pixels that scikit-learn ships. Its gradients are dense, so
compression has little to gain.

    pip install '.[torch]' scikit-learn
    switchreduce switch --no-p4 --cpu-port 510 --udp 127.0.0.1:21330
    switchreduce controller
    torchrun --standalone --nproc-per-node 4 examples/vgg.py --backend switchreduce
    torchrun --standalone --nproc-per-node 4 examples/vgg.py --backend gloo

A fifth of the digits is held out.
"""

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import switchreduce.torch

BATCH = 16  # digits a rank
LEARNING_RATE = 0.03
MOMENTUM = 0.9


def small_vgg() -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 1
    for width in (32, 64):
        for _ in range(2):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * channels, 128), nn.ReLU(), nn.Linear(128, 10))


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
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="write the loss of every step")
    options = parser.parse_args()

    torch.set_num_threads(1)
    about = switchreduce.torch.Options(codec=options.codec) if options.backend == "switchreduce" else None
    dist.init_process_group(options.backend, pg_options=about)
    rank, world_size = dist.get_rank(), dist.get_world_size()

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).to(torch.float32).reshape(-1, 1, 8, 8) / 16
    digits = torch.from_numpy(labels)
    held_out = torch.arange(len(digits)) % 5 == 4
    training = torch.nonzero(~held_out)[:, 0]

    torch.manual_seed(options.seed)
    model = DistributedDataParallel(small_vgg())
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    random = torch.Generator().manual_seed(options.seed)  # the same digits on all ranks; each takes some

    losses: list[float] = []
    started = time.perf_counter()
    for step in range(options.steps):
        batch = training[torch.randint(len(training), (world_size, BATCH), generator=random)[rank]]
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), digits[batch])
        loss.backward()
        optimiser.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        losses.append(mean.item() / world_size)
        if rank == 0 and ((step + 1) % 10 == 0 or step + 1 == options.steps):
            show_progress(step + 1, options.steps, losses[-1], started)

    digests = [""] * world_size
    dist.all_gather_object(digests, digest_of(model))
    if rank == 0:
        with torch.no_grad():
            guesses = model.module(images[held_out]).argmax(1)
        accuracy = float((guesses == digits[held_out]).float().mean())
        print(f"loss of the last step {losses[-1]:.6f}, held-out digits recognised {accuracy:.1%}")
        print(f"sha256 of the parameters, by rank: {', '.join(digests)}")
        if options.backend == "switchreduce":
            totals = dist.group.WORLD.state.totals
            print(f"sent {totals.bytes_sent:,} bytes for {totals.dense_bytes:,} of tensors")
        if options.record:
            options.record.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
