"""Train a language model data parallel, over the switch or over Gloo.

A word-level LSTM on a text that is on every machine with Python: its language reference, from `pydoc_data`
(some 80,000 words). The embedding's gradient is sparse, the LSTM's and the output layer's are dense.

    pip install '.[torch]'
    switchreduce switch --no-p4 --cpu-port 510 --udp 127.0.0.1:21330
    switchreduce controller
    torchrun --standalone --nproc-per-node 4 examples/lstm.py --backend switchreduce
    torchrun --standalone --nproc-per-node 4 examples/lstm.py --backend gloo

A tenth of its paragraphs is held out; what counts is the perplexity there.
"""

import argparse
import hashlib
import json
import math
import re
import sys
import time
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import switchreduce.torch

BATCH = 10  # sequences a rank
LENGTH = 20  # words of a sequence
WIDTH = 128  # of embedding and LSTM
LEARNING_RATE = 0.002
RAREST = 2  # words that come less often are all one word


class LanguageModel(nn.Module):
    """The next word's logits at every place of a sequence."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.output = nn.Linear(WIDTH, words)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(sequences))
        return self.output(hidden)


def read_text() -> tuple[torch.Tensor, torch.Tensor, int]:
    """(text to train on, text held out: numbers of words; how many different words)."""
    whole = "\n\n".join(topics[name] for name in sorted(topics))
    paragraphs = list(dict.fromkeys(whole.split("\n\n")))  # some topics are parts of others
    texts = [" ".join(p for n, p in enumerate(paragraphs) if (n % 10 == 9) == last) for last in (False, True)]
    training, held_out = (re.findall(r"\w+|[^\w\s]", text.lower()) for text in texts)
    common = sorted(word for word, count in Counter(training).items() if count >= RAREST)
    numbers = {word: number for number, word in enumerate(common, 1)}
    numbered = [torch.tensor([numbers.get(word, 0) for word in text]) for text in (training, held_out)]
    return numbered[0], numbered[1], len(common) + 1


def loss_of(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each word given those before; `sequences` are a word longer than LENGTH."""
    logits = model(sequences[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


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
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="write the loss of every step")
    options = parser.parse_args()

    torch.set_num_threads(1)
    about = switchreduce.torch.Options(codec=options.codec) if options.backend == "switchreduce" else None
    dist.init_process_group(options.backend, pg_options=about)
    rank, world_size = dist.get_rank(), dist.get_world_size()

    training, held_out, words = read_text()
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(LanguageModel(words))
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    random = torch.Generator().manual_seed(options.seed)  # the same places on all ranks; each takes some

    losses: list[float] = []
    started = time.perf_counter()
    for step in range(options.steps):
        places = torch.randint(len(training) - LENGTH, (world_size, BATCH, 1), generator=random)[rank]
        optimiser.zero_grad()
        loss = loss_of(model, training[places + torch.arange(LENGTH + 1)])
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
        whole = held_out[: len(held_out) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
        with torch.no_grad():
            perplexity = math.exp(loss_of(model.module, whole))
        print(f"loss of the last step {losses[-1]:.6f}, perplexity of the held-out text {perplexity:.1f}")
        print(f"sha256 of the parameters, by rank: {', '.join(digests)}")
        if options.backend == "switchreduce":
            totals = dist.group.WORLD.state.totals
            print(f"sent {totals.bytes_sent:,} bytes for {totals.dense_bytes:,} of tensors")
        if options.record:
            options.record.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
