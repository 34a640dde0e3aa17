"""Batches of frames in flat arrays, as the generated code takes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


# what generated code is told of a batch (int64): its arrays' addresses and how much they hold
DATA, OFFSET, LENGTHS, PORTS, FRAMES, DATA_BYTES = range(6)


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


@dataclass
class Frames:
    """Frame k is data[offset[k] : offset[k] + length[k]] and came in (or leaves) through port[k].

    data: uint8[max_bytes]; offset, length (bytes) and port: int64[max_frames]. `count` frames are there; of
    incoming ones the first `cursor` are done. The arrays stay: the switch keeps their addresses. Raises
    ValueError for arrays of other types or sizes.
    """

    data: Final[Bytes]
    offset: Final[Numbers]
    length: Final[Numbers]
    port: Final[Numbers]
    count: int = 0
    cursor: int = 0
    used: int = field(default=0)  # bytes of data
    place: int = field(init=False, repr=False)  # address of what generated code is told

    def __post_init__(self) -> None:
        arrays: list[np.ndarray[Any, Any]] = [self.data, self.offset, self.length, self.port]
        kinds = (np.uint8, np.int64, np.int64, np.int64)
        fits = all(a.dtype == k and a.flags.c_contiguous for a, k in zip(arrays, kinds, strict=True))
        if not fits or not self.length.size == self.port.size == self.offset.size:
            raise ValueError("frames need contiguous uint8 data and int64 numbers, one a frame")
        # once, since NumPy takes 4 us to tell an address
        places = [address(a) for a in arrays]
        self._told = np.array([*places, self.offset.size, self.data.size], dtype=np.int64)
        self.place = address(self._told)

    @classmethod
    def allocate(cls, max_frames: int, max_bytes: int) -> Frames:
        offset, length, port = (np.zeros(max_frames, dtype=np.int64) for _ in range(3))
        return cls(np.zeros(max_bytes, dtype=np.uint8), offset, length, port)

    def clear(self) -> None:
        self.count = self.cursor = self.used = 0

    def append(self, port: int, frame: bytes) -> None:
        """Adds a frame; ValueError when there is no room."""
        k, n = self.count, len(frame)
        if k == self.offset.size or self.used + n > self.data.size:
            raise ValueError("the batch is full; allocate a larger one")
        self.data[self.used : self.used + n] = np.frombuffer(frame, dtype=np.uint8)
        self.offset[k], self.length[k], self.port[k] = self.used, n, port
        self.used += n
        self.count += 1

    def frame(self, k: int) -> bytes:
        at = int(self.offset[k])
        return self.data[at : at + int(self.length[k])].tobytes()
