"""The pcap writer, read back by Scapy."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.utils import RawPcapReader

from switchreduce.sim.pcap import FILE_HEADER, LINKTYPE_ETHERNET, RECORD_HEADER, PcapFile

FULL = Path("/dev/full")


def read(path: Path) -> list[tuple[int, bytes]]:
    reader = RawPcapReader(str(path))
    assert reader.linktype == LINKTYPE_ETHERNET
    assert reader.nano
    found = []
    for frame, about in reader:
        assert about.wirelen == about.caplen == len(frame)
        found.append((about.sec * 10**9 + about.usec, frame))
    return found


RECORDS = st.tuples(st.integers(0, 2**32 * 10**9 - 1), st.binary(max_size=200))


@given(st.lists(st.lists(RECORDS, max_size=10), max_size=5))
def test_what_was_written_is_there_before_the_file_is_closed(tmp_path_factory, batches):
    path = tmp_path_factory.mktemp("pcap") / "a.pcap"
    file = PcapFile(path)
    written: list[tuple[int, bytes]] = []
    for batch in batches:
        file.write((when, memoryview(frame)) for when, frame in batch)
        written += batch
        assert read(path) == written
    file.close()


def test_a_file_is_begun_anew(tmp_path):
    path = tmp_path / "a.pcap"
    for _ in range(2):
        file = PcapFile(path)
        file.write([(1, b"frame")])
        file.close()
    assert read(path) == [(1, b"frame")]


def test_a_full_disk_leaves_whole_records(tmp_path):
    """A limit on the size of files stands for the disk; it takes half a record and refuses the rest."""
    path = tmp_path / "a.pcap"
    file = PcapFile(path)
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    file.write([(1, bytes(100))])
    size = path.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, earlier[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            file.write([(2, bytes(100))])
        assert path.stat().st_size == size
        file.write([(3, bytes(20))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, earlier)
    file.close()
    assert read(path) == [(1, bytes(100)), (3, bytes(20))]


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
def test_a_file_that_cannot_be_begun_is_said():
    with pytest.raises(OSError, match="No space"):
        PcapFile(FULL)


FRAME_BYTES = 1200
WRITER = """\
import sys
from pathlib import Path
from switchreduce.sim.pcap import PcapFile
file = PcapFile(Path(sys.argv[1]))
frame = bytes(int(sys.argv[2]))
print("ready", flush=True)
number = 0
while True:
    file.write([(number + i, frame) for i in range(64)])
    number += 64
"""


def test_a_killed_writer_leaves_what_it_wrote(tmp_path):
    path = tmp_path / "a.pcap"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for delay in (0.01, 0.03, 0.1):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(FRAME_BYTES)],
            stdout=subprocess.PIPE,
            env=environment,
        ) as writer:
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(delay)
            writer.kill()
        numbers = [about.usec for _, about in RawPcapReader(str(path))]
        assert numbers == list(range(len(numbers)))
        whole = (path.stat().st_size - FILE_HEADER.size) // (RECORD_HEADER.size + FRAME_BYTES)
        assert len(numbers) - whole in (0, 1)  # the kernel may have ended in the middle of the last one
        assert whole > 100
