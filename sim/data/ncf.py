"""Neural collaborative filtering in NumPy: forward pass, loss and backward pass.

The model is NeuMF of He et al. 2017 (https://arxiv.org/abs/1708.05031, section 3.4): a generalised
matrix factorisation branch (GMF, the element-wise product of a user's and an item's embedding) beside a
multi-layer perceptron (MLP) over a second pair of embeddings; both outputs feed one sigmoid unit.

All parameters live in one flat vector, and so does their gradient: that is the form in which data
parallel training hands a gradient to allreduce.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ModelSize:
    """How large each part is; the defaults are section 4.1's for 32 predictive factors.

    There, the last hidden layer has as many units as predictive factors, each layer below it has twice
    as many units, and the MLP's embeddings are twice as wide as the factors.
    """

    users: int
    items: int
    factors: int = 32  # width of the GMF embeddings
    embedding: int = 64  # width of the MLP embeddings
    hidden: tuple[int, ...] = (128, 64, 32)  # units of each ReLU layer


@dataclass(frozen=True)
class Batch:
    """Training examples: parallel vectors of user, item and whether the user rated the item."""

    users: Integers
    items: Integers
    labels: Floats  # 1 for an observed interaction, 0 for a sampled negative

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> "Batch":
        """Return examples ``start`` to ``stop - 1``."""
        return Batch(self.users[start:stop], self.items[start:stop], self.labels[start:stop])


def parameter_shapes(size: ModelSize) -> dict[str, tuple[int, int]]:
    """Name and shape of every parameter in the flat vector's order: embedding tables, then dense layers.

    Every parameter is a matrix in C order (a bias is one row), so that one (n, 2) array can list them.
    """
    shapes = {
        "gmf_user": (size.users, size.factors),
        "gmf_item": (size.items, size.factors),
        "mlp_user": (size.users, size.embedding),
        "mlp_item": (size.items, size.embedding),
    }
    width = 2 * size.embedding
    for layer, units in enumerate(size.hidden):
        shapes[f"hidden{layer}_weight"] = (width, units)
        shapes[f"hidden{layer}_bias"] = (1, units)
        width = units
    shapes["output_weight"] = (size.factors + width, 1)
    shapes["output_bias"] = (1, 1)
    return shapes


def parameter_count(size: ModelSize) -> int:
    """Length of the flat vector."""
    return sum(rows * columns for rows, columns in parameter_shapes(size).values())


def parameter_views(flat: Floats, size: ModelSize) -> dict[str, Floats]:
    """Cut a flat vector into named matrices that share its memory."""
    views = {}
    offset = 0
    for name, (rows, columns) in parameter_shapes(size).items():
        views[name] = flat[offset : offset + rows * columns].reshape(rows, columns)
        offset += rows * columns
    return views


def initial_parameters(size: ModelSize, random: np.random.RandomState) -> npt.NDArray[np.float32]:
    """Draw parameters: embeddings from N(0, 0.01^2) (He et al., section 4.1), biases zero, weights Glorot.

    The dense weights are uniform within sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010): with 0.01
    there too, three layers would scale the MLP's gradients down to nothing in the first epochs.
    """
    flat = np.zeros(parameter_count(size), np.float32)
    for name, view in parameter_views(flat, size).items():
        if name.endswith("_weight"):
            bound = np.sqrt(6 / sum(view.shape))
            view[:] = random.uniform(-bound, bound, view.shape)
        elif not name.endswith("_bias"):
            view[:] = random.normal(0, 0.01, view.shape)
    return flat


def loss_and_gradient(flat: Floats, size: ModelSize, batch: Batch) -> tuple[float, Floats]:
    """Mean binary cross-entropy of a batch and its gradient.

    Args:
        flat: all parameters, in the order of :func:`parameter_shapes`; float32 or float64.
        size: the model's size.
        batch: at least one example.

    Returns:
        The loss, and the gradient as a new vector of ``flat``'s shape and dtype. In the embedding tables,
        only rows of users and items that occur in the batch can be non-zero.
    """
    parameters = parameter_views(flat, size)
    labels = batch.labels.astype(flat.dtype)

    gmf_user, gmf_item = parameters["gmf_user"][batch.users], parameters["gmf_item"][batch.items]
    mlp_user, mlp_item = parameters["mlp_user"][batch.users], parameters["mlp_item"][batch.items]
    activations = [np.concatenate([mlp_user, mlp_item], axis=1)]  # input of each dense layer
    for layer in range(len(size.hidden)):
        weight, bias = parameters[f"hidden{layer}_weight"], parameters[f"hidden{layer}_bias"]
        activations.append(np.maximum(activations[-1] @ weight + bias, 0))
    fused = np.concatenate([gmf_user * gmf_item, activations[-1]], axis=1)
    logits = (fused @ parameters["output_weight"] + parameters["output_bias"])[:, 0]
    loss = float(np.mean(np.logaddexp(0, logits) - labels * logits))

    gradient = np.zeros_like(flat)
    gradients = parameter_views(gradient, size)
    sigmoid = (1 + np.tanh(logits / 2)) / 2  # this form does not overflow
    d_logits = ((sigmoid - labels) / len(batch))[:, np.newaxis]
    gradients["output_weight"][:] = fused.T @ d_logits
    gradients["output_bias"][:] = d_logits.sum(axis=0)
    d_fused = d_logits @ parameters["output_weight"].T
    d_product, d_activation = d_fused[:, : size.factors], d_fused[:, size.factors :]
    for layer in reversed(range(len(size.hidden))):
        d_sum = d_activation * (activations[layer + 1] > 0)
        gradients[f"hidden{layer}_weight"][:] = activations[layer].T @ d_sum
        gradients[f"hidden{layer}_bias"][:] = d_sum.sum(axis=0)
        d_activation = d_sum @ parameters[f"hidden{layer}_weight"].T

    # a user or item may occur several times in a batch: its rows add up
    np.add.at(gradients["gmf_user"], batch.users, d_product * gmf_item)
    np.add.at(gradients["gmf_item"], batch.items, d_product * gmf_user)
    np.add.at(gradients["mlp_user"], batch.users, d_activation[:, : size.embedding])
    np.add.at(gradients["mlp_item"], batch.items, d_activation[:, size.embedding :])
    return loss, gradient
