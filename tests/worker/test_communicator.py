"""The API over real sockets, a real switch process and a real controller process."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchreduce import Communicator
from switchreduce.errors import (
    ControllerError,
    MismatchError,
    NonFiniteError,
    RankLostError,
    SumOverflowError,
    SwitchReduceError,
    UsageError,
)
from switchreduce.p4.builds import load_build
from switchreduce.p4.packet import datagram_bytes
from switchreduce.worker.calls import CODECS
from switchreduce.worker.codec.reference import exact_allreduce, rounded_allreduce
from tests.cluster import raise_errors, run_ranks, running_cluster

_names = (f"job{i}" for i in itertools.count())


@pytest.fixture(scope="module", params=[0.0, 0.05], ids=["clean", "5% loss"])
def any_cluster(request):
    with running_cluster(loss=request.param, seed=7) as running:
        yield running


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as running:
        yield running


def sparse(rng: np.random.Generator, size: int, density: float, dtype: str) -> np.ndarray:
    mask = rng.random(size) < density
    if dtype == "int32":
        return np.where(mask, rng.integers(-(10**6), 10**6, size), 0).astype(np.int32)
    return np.where(mask, rng.standard_normal(size) * 10.0 ** rng.integers(-3, 3), 0).astype(dtype)


@pytest.mark.parametrize("codec", ["auto", "packed", "sketch", "dense"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_several_calls_in_a_row_are_exact(any_cluster, codec, dtype):
    rng = np.random.default_rng(3)
    shapes = [(1,), (0,), (3, 4, 5), (), (1000, 7), (2**18 + 3,), (700_001,)]
    inputs = [
        [sparse(rng, int(np.prod(shape)), 0.1, dtype).reshape(shape) for _ in range(3)] for shape in shapes
    ]
    ops = ["sum"] * len(shapes) if dtype == "int32" else ["sum", "mean"] * len(shapes)

    def work(communicator, rank):
        outputs = []
        for arrays, op in zip(inputs, ops, strict=False):
            x = arrays[rank].copy()
            communicator.allreduce(x, op=op, codec=codec)
            outputs.append(x)
        return outputs

    results = raise_errors(run_ranks(any_cluster, next(_names), 3, work))
    for i, (arrays, op) in enumerate(zip(inputs, ops, strict=False)):
        expected = exact_allreduce([a.reshape(-1) for a in arrays], op).result
        for rank in range(3):
            assert results[rank][i].shape == arrays[rank].shape
            assert results[rank][i].tobytes() == expected.tobytes()


@settings(max_examples=8)
@given(
    world_size=st.integers(1, 5),
    size=st.integers(0, 5000),
    density=st.floats(0, 1),
    codec=st.sampled_from(CODECS),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_job_is_exact(cluster, world_size, size, density, codec, seed):
    rng = np.random.default_rng(seed)
    arrays = [sparse(rng, size, density, "float32") for _ in range(world_size)]

    def work(communicator, rank):
        x = arrays[rank].copy()
        communicator.allreduce(x, codec=codec)
        return x.tobytes()

    results = raise_errors(run_ranks(cluster, next(_names), world_size, work))
    expected = rounded_allreduce(arrays) if codec == "exact" else exact_allreduce(arrays).result
    assert set(results) == {expected.tobytes()}


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_several_arrays_in_one_call_are_one_stream(cluster, dtype):
    """As long a stream as a block and more, with arrays that end anywhere."""
    rng = np.random.default_rng(9)
    shapes = [(3,), (0,), (1000, 300), (), (7, 1), (2**17,)]
    inputs = [
        [sparse(rng, int(np.prod(shape)), 0.2, dtype).reshape(shape) for shape in shapes] for _ in range(2)
    ]

    def work(communicator, rank):
        arrays = [array.copy() for array in inputs[rank]]
        arrays[2] = np.asfortranarray(arrays[2])
        report = communicator.allreduce(arrays, codec="packed")
        return [array.tobytes() for array in arrays], report.packets_sent

    expected = exact_halves([np.concatenate([a.reshape(-1) for a in arrays]) for arrays in inputs], "sum")
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    parts = [part.reshape(shape) for part, shape in zip(np.split(expected, ends[:-1]), shapes, strict=True)]
    for results, packets in raise_errors(run_ranks(cluster, next(_names), 2, work)):
        assert results == [part.tobytes() for part in parts]
        assert packets < 700


def exact_halves(flats: list[np.ndarray], op: str) -> np.ndarray:
    if flats[0].dtype.itemsize > 2:
        return exact_allreduce(flats, op).result
    with np.errstate(over="ignore"):
        return exact_allreduce([flat.astype(np.float64) for flat in flats], op).result.astype(flats[0].dtype)


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(cluster, dtype, op):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rng = np.random.default_rng(4)
    inputs = [sparse(rng, 300_001, 0.3, "float64").astype(half) for _ in range(3)]
    inputs[0][5] = inputs[1][5] = ml_dtypes.finfo(half).max

    def work(communicator, rank):
        x = inputs[rank].copy()
        communicator.allreduce(x, op=op)
        return x

    for got in raise_errors(run_ranks(cluster, next(_names), 3, work)):
        assert got.dtype == half
        # blocks other than the first are scaled alike, so the reference's float64 sums are those added here
        expected = exact_halves(inputs, op)
        if dtype == "float16":
            assert got.tobytes() == expected.tobytes()
        else:
            # ml_dtypes rounds float64 by way of float32, twice: at most the last bit differs, very rarely
            differ = got.view(np.int16).astype(int) - expected.view(np.int16)
            assert np.abs(differ).max() <= 1
            assert np.count_nonzero(differ) < 30


def test_arrays_that_are_not_contiguous_change_in_place(cluster):
    def work(communicator, rank):
        whole = np.zeros((6, 8), np.float32)
        part = whole[::2, 1::3]
        part[...] = rank + 1
        communicator.allreduce(part)
        fortran = np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3))
        communicator.allreduce(fortran)
        return whole, fortran

    for whole, fortran in raise_errors(run_ranks(cluster, next(_names), 2, work)):
        assert (whole[::2, 1::3] == 3).all()
        assert whole.sum() == 3 * whole[::2, 1::3].size
        np.testing.assert_array_equal(fortran, 2 * np.arange(6).reshape(2, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda ones: ones.reshape(6, 4).view(np.matrix),
        lambda ones: np.frombuffer(bytearray(b"." + ones.tobytes()), np.uint8)[1:].view(ones.dtype),
        lambda ones: ones[::-2],
        lambda ones: np.array(ones[0]),
        lambda ones: np.zeros(24, [("pad", "u1"), ("x", ones.dtype)])["x"],
        lambda ones: ones[:0].reshape(0, 7),
    ],
    ids=["matrix", "unaligned", "backwards", "0-d", "field", "empty"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_arrays_of_every_layout_change_in_place(cluster, make, dtype):
    """Also where only one rank's array is laid out so."""

    def work(communicator, rank):
        for odd_ranks in ({0, 1}, {0}):
            x = make(np.ones(24, dtype))
            if rank not in odd_ranks:
                x = np.array(x)
            x[...] = rank + 1
            shape = x.shape
            communicator.allreduce(x)
            assert x.shape == shape
            assert (np.asarray(x) == 3).all()

    raise_errors(run_ranks(cluster, next(_names), 2, work, timeout=5))


def fails_then_works(cluster, first_call):
    """Every rank's error from `first_call`, after checking that the communicator still works."""

    def work(communicator, rank):
        started = time.monotonic()
        try:
            first_call(communicator, rank)
            error = None
        except SwitchReduceError as caught:
            error = caught
        seconds = time.monotonic() - started
        x = np.ones(5, np.float32)
        communicator.allreduce(x)
        return error, seconds, x.tolist()

    results = raise_errors(run_ranks(cluster, next(_names), 3, work))
    for _, seconds, sums in results:
        assert seconds < 2
        assert sums == [3.0] * 5
    return [error for error, _, _ in results]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_names_rank_and_index(cluster, value):
    kept = []

    def call(communicator, rank):
        x = np.full((4, 5), 2.0, np.float32)
        if rank == 1:
            x[2, 3] = value
        before = x.copy()
        try:
            communicator.allreduce(x)
        finally:
            kept.append(x.tobytes() == before.tobytes())

    errors = fails_then_works(cluster, call)
    assert [type(error) for error in errors] == [NonFiniteError] * 3
    for error in errors:
        assert "rank 1" in str(error)
        assert "(2, 3)" in str(error)
    assert kept == [True] * 3


@pytest.mark.parametrize(
    "of_rank_2",
    [
        {"shape": (5, 4)},
        {"shape": (2**19,)},
        {"dtype": np.float64},
        {"codec": "dense"},
        {"op": "mean"},
    ],
    ids=lambda d: next(iter(d)),
)
def test_ranks_that_differ_are_all_told(cluster, of_rank_2):
    def call(communicator, rank):
        how = {"shape": (4, 5), "dtype": np.float32, "codec": "sketch", "op": "sum"}
        if rank == 2:
            how.update(of_rank_2)
        communicator.allreduce(np.ones(how["shape"], how["dtype"]), op=how["op"], codec=how["codec"])

    errors = fails_then_works(cluster, call)
    assert [type(error) for error in errors] == [MismatchError] * 3
    assert len({str(error) for error in errors}) == 1
    assert "ranks 0, 1:" in str(errors[0])
    assert "rank 2:" in str(errors[0])


@pytest.mark.parametrize(
    ("array", "arguments", "word"),
    [
        (np.ones(3, np.uint8), {}, "uint8"),
        (np.ones(3, np.longdouble), {}, "longdouble" if np.longdouble(0).itemsize == 8 else "float128"),
        (np.ones(3, np.float32), {"op": "product"}, "product"),
        (np.ones(3, np.float32), {"codec": "zip"}, "zip"),
        (np.ones(3, np.float32), {"nonfinite": "ignore"}, "ignore"),
        (np.ones(3, np.int32), {"op": "mean"}, "mean"),
        (np.ones(3, np.float32), {"op": "é" * 10_000}, "op 'éé"),
        ([1.0, 2.0], {}, "list of float"),
        ([], {}, "list"),
        ([np.ones(3, np.float32), None], {}, "list of NoneType"),
        ([np.ones(3, np.float32), np.ones(3)], {}, "one dtype"),
        ([[1.0], [2.0, 3.0]], {}, "list"),
        (None, {}, "NoneType"),
        (np.ma.masked_equal(np.ones(3, np.float32), 1), {}, "masked"),
        (np.broadcast_to(np.float32(1), 3), {}, "read-only"),
        (np.ones(3, ">f4"), {}, "native"),
    ],
)
def test_arguments_that_are_refused_reach_every_rank(cluster, array, arguments, word):
    def call(communicator, rank):
        if rank == 0:
            communicator.allreduce(array, **arguments)
        else:
            communicator.allreduce(np.ones(3, np.float32))

    errors = fails_then_works(cluster, call)
    assert [type(error) for error in errors] == [UsageError] * 3
    assert all(word in str(error) for error in errors)


@pytest.mark.parametrize("codec", ["packed", "sketch", "dense"])
def test_integer_sums_are_exact_or_an_error(cluster, codec):
    top = np.iinfo(np.int32).max

    def fits(communicator, rank):
        x = np.array([[top, top, -top - 1], [-5, 0, 1], [5, 0, 0]], np.int32)[rank]
        communicator.allreduce(x, codec=codec)
        assert x.tolist() == [top, top, -top]
        x = np.array([[top, 0], [1, 0], [0, 0]], np.int32)[rank]
        before = x.copy()
        try:
            communicator.allreduce(x, codec=codec)
        finally:
            assert x.tolist() == before.tolist()

    errors = fails_then_works(cluster, fits)
    assert [type(error) for error in errors] == [SumOverflowError] * 3
    assert all("index (0,)" in str(error) for error in errors)


def test_two_jobs_at_once_do_not_touch_each_other(cluster):
    results = {}

    def job(name, value):
        def work(communicator, rank):
            for _ in range(20):
                x = np.full(3000, value, np.float32)
                communicator.allreduce(x, codec="dense")
                assert (x == 2 * value).all()
            return True

        results[name] = run_ranks(cluster, name, 2, work)

    threads = [threading.Thread(target=job, args=(next(_names), value)) for value in (1.0, 5.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(results.values()) == [[True, True]] * 2


def test_world_sizes_that_differ_are_told_to_all(cluster):
    errors = {}
    name = next(_names)

    def join(rank, world_size):
        try:
            Communicator.connect(cluster.controller, job=name, rank=rank, world_size=world_size, timeout=15)
        except SwitchReduceError as error:
            errors[rank] = (error, time.monotonic() - started)

    started = time.monotonic()
    threads = [threading.Thread(target=join, args=pair) for pair in ((0, 3), (1, 3), (2, 4))]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert sorted(errors) == [0, 1, 2]
    for error, seconds in errors.values():
        assert isinstance(error, MismatchError)
        assert seconds < 2


def test_a_rank_that_never_joins_is_named(cluster):
    results = run_ranks(cluster, next(_names), 3, lambda c, r: None, timeout=1.5, ranks=[0, 2])
    for rank in (0, 2):
        assert isinstance(results[rank], RankLostError)
        assert "1" in str(results[rank])


RANK_THAT_HANGS = """
import sys, time
from switchreduce import Communicator
with Communicator.connect(sys.argv[1], job=sys.argv[2], rank=2, world_size=3) as c:
    print("joined", flush=True)
    time.sleep(60)
"""


def test_a_killed_rank_is_named_and_its_slots_are_free_again(cluster):
    name = next(_names)
    command = [sys.executable, "-c", RANK_THAT_HANGS, cluster.controller, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:

        def work(communicator, rank):
            if rank == 0:
                victim.stdout.readline()
                victim.kill()
            started = time.monotonic()
            with pytest.raises(RankLostError, match="rank 2"):
                communicator.allreduce(np.ones(100_000, np.float32))
            return time.monotonic() - started

        seconds = raise_errors(run_ranks(cluster, name, 3, work, ranks=[0, 1]))
        assert seconds[0] < 6
        assert seconds[1] < 20

    def after(communicator, rank):
        x = np.ones(1000, np.float32)
        communicator.allreduce(x)
        return x.sum()

    assert raise_errors(run_ranks(cluster, name, 3, after)) == [3000.0] * 3


def test_a_rank_that_does_not_call_is_named(cluster):
    def work(communicator, rank):
        if rank == 1:
            time.sleep(4)
            return None
        with pytest.raises(RankLostError, match="rank 1 did not take part"):
            communicator.allreduce(np.ones(10, np.float32))
        return None

    raise_errors(run_ranks(cluster, next(_names), 2, work, timeout=1.5))


def test_a_rank_that_left_is_named_at_once(cluster):
    """News of it came during an earlier call, whose result was still to be had."""
    left = threading.Event()

    def work(communicator, rank):
        communicator.allreduce(np.ones(10, np.float32))
        if rank == 1:
            communicator.close()
            left.set()
            return None
        left.wait(10)
        time.sleep(0.2)
        communicator._membership.check(0)  # as the next look at the news in that call would have done
        started = time.monotonic()
        with pytest.raises(RankLostError, match=r"rank 1 .* left .* after 1 call"):
            communicator.allreduce(np.ones(10, np.float32))
        return time.monotonic() - started

    assert raise_errors(run_ranks(cluster, next(_names), 2, work))[0] < 1


def test_a_rank_that_breaks_off_a_call_is_named_at_once(cluster):
    """Leaving after an interrupt, say, must not count as having finished the call."""

    def work(communicator, rank):
        communicator.allreduce(np.ones(10, np.float32))
        if rank == 1:

            def interrupt(*_):
                raise KeyboardInterrupt

            communicator._drive = interrupt
            with pytest.raises(KeyboardInterrupt):
                communicator.allreduce(np.ones(10, np.float32))
            with pytest.raises(UsageError, match="interrupted"):
                communicator.allreduce(np.ones(10, np.float32))
            return 0.0
        started = time.monotonic()
        with pytest.raises(RankLostError, match=r"rank 1 .* left .* after 1 call"):
            communicator.allreduce(np.ones(10, np.float32))
        return time.monotonic() - started

    assert max(raise_errors(run_ranks(cluster, next(_names), 2, work))) < 2


def test_a_second_thread_is_refused_and_disturbs_nothing(cluster):
    def work(communicator, rank):
        refusals = []
        x = np.ones(2_000_000, np.float32)
        caller = threading.Thread(target=communicator.allreduce, args=(x,), kwargs={"codec": "dense"})
        caller.start()
        while caller.is_alive():
            try:
                communicator.allreduce(np.ones(3, np.float32))
            except UsageError as error:
                refusals.append(str(error))
            else:
                break  # the other was done meanwhile
            time.sleep(0.001)
        else:
            communicator.allreduce(np.ones(3, np.float32))
        caller.join()
        assert (x == 2).all()
        return refusals

    for refusals in raise_errors(run_ranks(cluster, next(_names), 2, work)):
        assert all("one thread" in text for text in refusals)


FORKED = """
import os, sys
import numpy as np
from switchreduce import Communicator
from switchreduce.errors import UsageError
with Communicator.connect(sys.argv[1], job=sys.argv[2], rank=0, world_size=1) as c:
    child = os.fork()
    if child == 0:
        try:
            c.allreduce(np.ones(3, np.float32))
        except UsageError as error:
            assert "forked" in str(error)
        else:
            os._exit(1)
        c.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    x = np.ones(3, np.float32)
    c.allreduce(x)
    assert (x == 1).all()
"""


def test_a_forked_child_is_not_the_rank(cluster):
    command = [sys.executable, "-c", FORKED, cluster.controller, next(_names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


CALLS_OF_EVERY_KIND = """
import sys
import numpy as np
from switchreduce import Communicator
from switchreduce.worker.calls import CODECS
from switchreduce.worker.codec import index_kernels as index
from switchreduce.worker.codec import kernels as codec
from switchreduce.worker.transport import kernels as transport

def compiled():
    return {
        (module.__name__, name): len(kernel.signatures)
        for module in (codec, index, transport)
        for name, kernel in vars(module).items()
        if hasattr(kernel, "signatures")
    }

with Communicator.connect(sys.argv[1], job=sys.argv[2], rank=0, world_size=1) as c:
    before = compiled()
    for dtype in ("float32", "float64", "int32"):
        for codec_name in CODECS:
            for op in ("sum", "mean") if dtype != "int32" else ("sum",):
                for step in (1, 50):
                    x = np.zeros(300_000, dtype)
                    x[::step] = 2**31 - 1 if dtype == "int32" else 1
                    c.allreduce(x, op=op, codec=codec_name)
    assert compiled() == before, (before, compiled())
"""


def test_no_call_compiles(cluster):
    """Whoever has joined is counted on: compiling comes before."""
    command = [sys.executable, "-c", CALLS_OF_EVERY_KIND, cluster.controller, next(_names)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_no_controller_is_said_in_one_line():
    with pytest.raises(ControllerError, match="no controller answers"):
        Communicator.connect("127.0.0.1:1", job="x", rank=0, world_size=1, timeout=0.5)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"rank": -1}, "ranks count from 0"),
        ({"rank": 2}, "ranks count from 0"),
        ({"world_size": 0}, "ranks count from 0"),
        ({"world_size": 65}, "64"),
        ({"world_size": 10**12}, "64"),
        ({"slots": -1}, "slots"),
        ({"slots": 10**12}, "slots"),
        ({"job": "\udcff"}, "cannot be printed"),
        ({"controller": ""}, "HOST:PORT"),
        ({"controller": "127.0.0.1"}, "HOST:PORT"),
        ({"controller": "127.0.0.1:99999"}, "HOST:PORT"),
        *[({"timeout": t}, "seconds") for t in (0.0, -1.0, float("nan"), float("inf"), 1e300)],
    ],
)
def test_a_place_that_cannot_be_is_refused(wrong, word):
    place = {"controller": "127.0.0.1:1", "job": "x", "rank": 0, "world_size": 2} | wrong
    with pytest.raises(UsageError, match=word):
        Communicator.connect(**place)


def test_garbage_at_the_switch_and_at_the_worker_changes_nothing(cluster):
    rng = np.random.default_rng(5)
    size = datagram_bytes(load_build("wide256"))

    def work(communicator, rank):
        attacker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        victim = communicator._link.socket.getsockname()
        for length in (0, 1, 24, size - 1, size, size, size, size + 1, 9000):
            noise = rng.bytes(length)
            attacker.sendto(noise, cluster.data)
            attacker.sendto(noise, victim)
            attacker.sendto(b"SR\x02" + noise[3:], cluster.data)
        x = np.full(5000, rank + 1, np.float32)
        communicator.allreduce(x)
        attacker.close()
        return set(x.tolist())

    assert raise_errors(run_ranks(cluster, next(_names), 2, work)) == [{3.0}, {3.0}]
