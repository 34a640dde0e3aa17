"""Tensors of any dtype as raw bits that the switch carries unchanged.

The switch adds int32 lanes, and adding zeros to any 32 bits leaves them as they are: a sum of integers to
which one rank alone contributes is that rank's bits. (Where values are large, the codec sends an int32 in two
lanes, so that it could check the sum.)
"""

from __future__ import annotations

import numpy as np
import torch

WORD = 4  # bytes


def words_of(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's elements in order, as int32[ceil(bytes / 4)], padded with zeros; a copy."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    words = np.zeros(-(-data.size // WORD), np.int32)
    words.view(np.uint8)[: data.size] = data
    return words


def write_words(words: np.ndarray, tensor: torch.Tensor) -> None:
    """Set the tensor's elements to those that `words_of` made `words` (int32) from."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:  # torch sees no such view
        return
    data = torch.from_numpy(words.view(np.uint8)[:size].copy())
    tensor.detach().copy_(data.view(tensor.dtype).reshape(tensor.shape))
