"""Sparse arrays give what dense ones do, and stay sparse."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce import SparseArray
from switchreduce.errors import NonFiniteError, UsageError
from switchreduce.worker.codec import BLOCK
from switchreduce.worker.sparse import SparseStream
from switchreduce.worker.stream import Result, Stream
from tests.cluster import raise_errors, run_ranks, running_cluster

_names = (f"sparse{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as running:
        yield running


def unfold(x: SparseArray) -> np.ndarray:
    dense = np.zeros(x.shape, x.dtype)
    dense[x.rows] = x.values
    return dense


def random_array(rng: np.random.Generator, height: int, width: int, rows: int, dtype) -> SparseArray:
    chosen = np.sort(rng.choice(height, rows, replace=False)).astype(np.int64)
    return SparseArray(chosen, rng.standard_normal((rows, width)).astype(dtype), height)


@settings(max_examples=100)
@given(height=st.integers(0, 40), width=st.integers(0, 9), seed=st.integers(0, 99), data=st.data())
def test_any_part_is_that_of_the_dense_array(height, width, seed, data):
    rng = np.random.default_rng(seed)
    x = random_array(rng, height, width, data.draw(st.integers(0, height)), np.float32)
    stream, flat = SparseStream(x), unfold(x).reshape(-1)
    assert stream.size == flat.size
    start = data.draw(st.integers(0, flat.size))
    stop = data.draw(st.integers(start, flat.size))
    np.testing.assert_array_equal(stream.values(start, stop), flat[start:stop])
    whole = Result(start, stop, x.dtype, lambda out: np.copyto(out, flat[start:stop]))
    again = SparseArray(x.rows, x.values, height)
    stream.write_back([whole], [], [again])
    expected = np.zeros(flat.size, np.float32)
    expected[start:stop] = flat[start:stop]
    np.testing.assert_array_equal(unfold(again).reshape(-1), expected)
    assert np.count_nonzero(again.values, axis=1).all()


@pytest.mark.parametrize("width", [1, 7, BLOCK + 5])
def test_keys_are_those_of_the_dense_array(width):
    rng = np.random.default_rng(width)
    x = random_array(rng, 4 * BLOCK // width + 3, width, 3, np.float32)
    x.values *= np.float32([[1e-9], [1], [1e9]])
    dense = Stream([unfold(x)])
    assert SparseStream(x).scan().keys.tolist() == dense.scan().keys.tolist()
    assert SparseStream(x).scan_exact(3).keys.tolist() == dense.scan_exact(3).keys.tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("codec", ["auto", "packed", "sketch", "dense", "exact"])
def test_sums_are_those_of_dense_arrays(cluster, codec, dtype):
    """Bit for bit, also where a rank has it dense and another has nothing."""
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype, dtype))
    rng = np.random.default_rng(8)
    height, width = 20_000, 48
    inputs = [random_array(rng, height, width, rows, np.float32) for rows in (400, 0, 90)]
    for x in inputs:
        x.values = (x.values * 1000).astype(dtype)
    op = "sum" if dtype == np.int32 else "mean"

    def work(communicator, rank):
        dense, sparse = unfold(inputs[rank]), SparseArray(inputs[rank].rows, inputs[rank].values, height)
        communicator.allreduce(dense, op=op, codec=codec)
        communicator.allreduce(unfold(inputs[2]) if rank == 2 else sparse, op=op, codec=codec)
        return dense, sparse

    for rank, (dense, sparse) in enumerate(raise_errors(run_ranks(cluster, next(_names), 3, work))):
        assert rank == 2 or unfold(sparse).tobytes() == dense.tobytes()
        assert rank == 2 or sparse.rows.size <= 490


def test_what_is_empty_costs_nothing(cluster):
    """64 GB if it were dense."""

    def work(communicator, rank):
        x = SparseArray(np.array([5, 10**9 + rank]), np.ones((2, 16), np.float32), 10**9 + 2)
        report = communicator.allreduce(x)
        return x.rows.tolist(), x.values[:, 0].tolist(), report.bytes_sent

    for rows, values, sent in raise_errors(run_ranks(cluster, next(_names), 2, work)):
        assert rows == [5, 10**9, 10**9 + 1]
        assert values == [2, 1, 1]
        assert sent < 1_000_000  # a key a block, and two blocks


def test_what_is_not_finite_is_named_or_propagates(cluster):
    def work(communicator, rank):
        x = SparseArray(np.array([2, 7 + rank]), np.ones((2, 3), np.float32), 10)
        if rank:
            x.values[1] = [np.inf, -np.inf, np.nan]
        with pytest.raises(NonFiniteError, match=r"rank 1 has inf at index \(8, 0\)"):
            communicator.allreduce(x)
        communicator.allreduce(x, nonfinite="propagate")
        return unfold(x)

    for dense in raise_errors(run_ranks(cluster, next(_names), 2, work)):
        np.testing.assert_array_equal(dense[[2, 7]], [[2] * 3, [1] * 3])
        np.testing.assert_array_equal(dense[8], [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize(
    "rows", [[3, 2], [2, 2], [-1, 2], [2, 10], [2]], ids=["order", "twice", "negative", "beyond", "too few"]
)
def test_rows_that_cannot_be_are_refused_on_all_ranks(cluster, rows):
    def work(communicator, rank):
        x = SparseArray(np.array(rows if rank else [2, 3]), np.ones((2, 3), np.float32), 10)
        with pytest.raises(UsageError, match="rows"):
            communicator.allreduce(x)

    raise_errors(run_ranks(cluster, next(_names), 2, work))
