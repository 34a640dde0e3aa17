"""Read a user's ``.npz`` or ``.npy`` into one array a rank, believing nothing that the file declares.

NumPy's own ``load`` reserves the memory that a header asks for before it looks at the data, stops at the
first array's end whatever follows, and answers a damaged file with a dozen kinds of exception. Here every
size is checked against the bytes that are there, and every fault is one ``UsageError``.
"""

import io
import math
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from switchreduce.errors import UsageError

SUPPORTED_DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int32))
# the longest array that a communicator takes
MAX_ELEMENTS = 100_000_000
# Deflate's limit: no stream unpacks to more than 1,032 times its size (zlib.net/zlib_tech.html).
DEFLATE_MAX_RATIO = 1032
# Fixed, so that every run of a job splits an array in the same way.
DEFAULT_SHARES = 4
SPLIT_SEED = 0
# NumPy refuses longer headers than 10,000 bytes; two length fields and the magic come before them.
MAX_HEADER = 12 + 10_000

Array = npt.NDArray[Any]

# what zipfile raises, or lets through from its parts, when an archive's fields make no sense
_ZIP_FAULTS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
)


def load_rank_arrays(path: str | os.PathLike[str], workers: int | None = None) -> list[Array]:
    """Read one array a rank from a file.

    The file holds either of

    - arrays ``rank0``, ``rank1``, ... (``.npz`` only), returned with the shapes and dtypes that they have,
      even if they differ from rank to rank; arrays with other names beside them are ignored;
    - a single array (``.npy``, or ``.npz`` with one array of any other name), which is split into sparse
      shares, see :func:`split_array`.

    Args:
        path: the file; its name must end in ``.npz`` or ``.npy``.
        workers: how many ranks are wanted. ``None`` takes as many as the file has, and splits a single
            array into DEFAULT_SHARES.

    Returns:
        One array a rank, C-contiguous, writable, float32, float64 or int32 in native byte order.

    Raises:
        UsageError: the file is missing, unreadable, damaged, not what its name says, or holds pickled
            objects, another dtype, an array of more than ``MAX_ELEMENTS`` elements, or other arrays than
            rank 0 to ``workers - 1``; or ``workers`` is below 1.
    """
    path = Path(path)
    if workers is not None and workers < 1:
        raise UsageError(f"cannot load arrays for {workers} workers: at least 1 is needed")
    shown = _one_line(repr(str(path)))
    try:
        if path.suffix not in (".npz", ".npy"):
            raise UsageError("the file's name must end in .npz or .npy")
        with _open_regular_file(path) as file:
            if path.suffix == ".npz":
                return _read_npz(file, workers)
            size = os.fstat(file.fileno()).st_size
            return _split_for(_read_npy(file, size, "the file"), workers)
    except UsageError as error:
        raise UsageError(f"cannot load {shown}: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot load {shown}: {_one_line(error.strerror or str(error))}") from error
    except MemoryError as error:
        raise UsageError(f"cannot load {shown}: its arrays do not fit in this machine's memory") from error


def split_array(array: Array, workers: int) -> list[Array]:
    """Split an array into ``workers`` sparse shares whose sum is the array.

    Each coordinate belongs to one rank, drawn uniformly and the same in every run (it depends on the
    array's shape and ``workers`` only): that rank's share holds the array's value there and all others
    hold zero. So the shares' sum is exact in any order of addition; only the sign of a negative zero is
    lost, as in any sum with a zero.

    Returns:
        Arrays of ``array``'s shape and dtype.
    """
    # RandomState rather than Generator: its streams are frozen for good (NEP 19).
    random = np.random.RandomState(SPLIT_SEED)
    owners = random.randint(workers, size=array.shape, dtype=np.min_scalar_type(workers - 1).type)
    shares = []
    for rank in range(workers):
        share = np.zeros_like(array)
        np.copyto(share, array, where=np.equal(owners, rank))
        shares.append(share)
    return shares


def _split_for(array: Array, workers: int | None) -> list[Array]:
    return split_array(array, DEFAULT_SHARES if workers is None else workers)


def _open_regular_file(path: Path) -> IO[bytes]:
    """Open for reading, but never wait for, or read without end from, a pipe or a device."""
    try:
        mode = path.stat().st_mode
    except ValueError as error:  # a NUL in the path
        raise UsageError("there is no such file") from error
    if not stat.S_ISREG(mode):
        raise UsageError("it is not a regular file")
    return path.open("rb")


def _read_npz(file: IO[bytes], workers: int | None) -> list[Array]:
    """Read all ranks' arrays, or split the only array, of an ``.npz``."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [entry.filename.removesuffix(".npy") for entry in archive.infolist()]
            entries = dict(zip(names, archive.infolist(), strict=True))
            if len(entries) != len(names):
                raise UsageError(f"it holds several arrays of one name: {_listed(names)}")
            found = [name for name in names if re.fullmatch(r"rank[0-9]+", name)]
            if not found and len(names) == 1:
                return _split_for(_read_member(archive, entries[names[0]], names[0]), workers)
            if not found:
                raise UsageError(
                    f"it must hold rank0, rank1, ... or a single array, but holds {_listed(names)}"
                )
            expected = _checked_rank_names(found, workers)
            return [_read_member(archive, entries[name], name) for name in expected]
    except _ZIP_FAULTS as error:
        raise UsageError(f"it is no intact .npz file ({_one_line(error)})") from error


def _checked_rank_names(found: list[str], workers: int | None) -> list[str]:
    """The names ``rank0``, ``rank1``, ... in order, if these are what was found and as many as wanted."""
    expected = [f"rank{rank}" for rank in range(len(found))]
    if set(found) != set(expected):
        raise UsageError(f"its ranks must be rank0, rank1, ... without gaps, but it holds {_listed(found)}")
    if workers is not None and workers != len(found):
        raise UsageError(
            f"{workers} workers were asked for, but it holds {len(found)} ranks: {_listed(expected)}"
        )
    return expected


def _read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> Array:
    """Read one array of an ``.npz``."""
    what = _one_line(repr(name))
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UsageError(f"{what} is compressed in a way that NumPy does not write")
    if entry.file_size > DEFLATE_MAX_RATIO * entry.compress_size:
        raise UsageError(f"{what} declares more data than it can hold: the file is damaged")
    with archive.open(entry) as member:
        return _read_npy(member, entry.file_size, what)


def _read_npy(file: IO[bytes], size: int, what: str) -> Array:
    """Read one array that must fill the stream's ``size`` bytes exactly.

    Source of the format: NEP 1 and ``numpy.lib.format``. Version 3.0 differs from 2.0 only for names of
    structured fields, which are not supported anyway.
    """
    beginning = io.BytesIO(file.read(MAX_HEADER))
    shape, fortran_order, dtype = _read_header(beginning, what)
    if dtype.hasobject:
        raise UsageError(f"{what} holds pickled objects, which are never loaded")
    if dtype.newbyteorder("=") not in SUPPORTED_DTYPES:
        raise UsageError(f"{what} is of dtype {_one_line(dtype)}: convert it to float32, float64 or int32")
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise UsageError(f"{what} declares more than the limit of {MAX_ELEMENTS:,} elements")
    declared = count * dtype.itemsize
    present = size - beginning.tell()
    if declared != present:
        fault = "is truncated" if present < declared else "has bytes after its end"
        raise UsageError(f"{what} {fault}: its header declares {declared} bytes of data, {present} are there")
    data = _read_up_to(file, beginning.read(), declared)
    if len(data) != declared:
        raise UsageError(f"{what} is truncated: {len(data)} of {declared} bytes of data are there")
    try:
        array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C")
    except (ValueError, OverflowError) as error:  # more dimensions, or a longer one, than NumPy has
        raise UsageError(f"{what} declares a shape that NumPy cannot hold") from error
    return array.astype(dtype.newbyteorder("="), order="C", copy=False)


def _read_header(file: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the order is Fortran's, and dtype of an ``.npy`` stream."""
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"its format version is {version[0]}.{version[1]}, not 1.0 or 2.0")
    # The header is Python source that NumPy gives to the interpreter's parser (literals only); what that,
    # and making a dtype of the outcome, raise on nonsense has no narrower common base.
    except Exception as error:
        raise UsageError(f"{what} is not readable as .npy ({_one_line(error)})") from error
    if any(length < 0 for length in shape):
        raise UsageError(f"{what} declares a negative length")
    return tuple(map(int, shape)), fortran_order, dtype  # NumPy lets True pass for 1


def _read_up_to(file: IO[bytes], beginning: bytes, length: int) -> bytearray:
    """``beginning`` and what follows it, ``length`` bytes in all or as many as there are.

    Memory grows with what is really there, not with what was declared.
    """
    data = bytearray(beginning)
    while len(data) < length and (part := file.read(min(length - len(data), 1 << 24))):
        data += part
    return data


def _listed(names: Iterable[str]) -> str:
    return _one_line(", ".join(map(repr, names))) or "nothing"


def _one_line(text: object) -> str:
    """Text from a file or an exception as at most 200 characters of one line."""
    line = " ".join(str(text).split())
    line = "".join(character if character.isprintable() else "?" for character in line)
    return line if len(line) <= 200 else line[:197] + "..."
