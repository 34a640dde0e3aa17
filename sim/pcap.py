"""Write captured frames to pcap files that stay readable however the writing process ends.

Scapy's writer keeps frames in a buffer, which a killed process takes with it. Here whole records go to the
kernel, several in one write, and what the kernel has it keeps. Only a kill -9 in the middle of a write can
cut a record, the last one, which readers report and pass over: Linux ends a write to a file at the page it
has got to when its process is killed.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterable
from pathlib import Path

# https://www.ietf.org/archive/id/draft-ietf-opsawg-pcap-05.html, in this machine's byte order: readers tell
# by the magic number.
MAGIC_NANOSECONDS = 0xA1B23C4D
VERSION = 2, 4
LINKTYPE_ETHERNET = 1
SNAP_BYTES = 2**18  # longer than any frame: none is cut
FILE_HEADER = struct.Struct("=IHHiIII")
RECORD_HEADER = struct.Struct("=IIII")  # seconds, nanoseconds, bytes kept, bytes on the wire

Record = tuple[int, "bytes | memoryview"]
"""When, in nanoseconds since 1970, and the frame from its Ethernet header on."""


class PcapFile:
    """The pcap file `path`, begun anew. Its methods raise OSError, and the file stays readable then too."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._end = 0
        try:
            self._append(FILE_HEADER.pack(MAGIC_NANOSECONDS, *VERSION, 0, 0, SNAP_BYTES, LINKTYPE_ETHERNET))
        except OSError:
            os.close(self._file)
            raise

    def write(self, records: Iterable[Record]) -> None:
        """Append `records`; when this returns, the kernel has them."""
        pieces: list[bytes | memoryview] = []
        for when_ns, frame in records:
            pieces.append(RECORD_HEADER.pack(*divmod(when_ns, 10**9), len(frame), len(frame)))
            pieces.append(frame)
        self._append(b"".join(pieces))

    def close(self) -> None:
        os.close(self._file)

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # a pipe cannot take anything back
                os.ftruncate(self._file, self._end)  # a full disk may have taken half a record
                os.lseek(self._file, self._end, os.SEEK_SET)
            raise
        self._end += len(data)
