"""Capture what enters and leaves a switch's ports, one pcap file a port, as the program sees the frames."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from switchreduce.errors import UsageError
from switchreduce.sim.pcap import PcapFile
from switchreduce.sim.target import Frames


class PortCapture:
    """Writes `folder`/<name>.pcap for each port, both ways in one file, in order.

    `names` of ports are their interfaces'; any other port is "port<number>" and gets its file with its first
    frame. Frames are written before `record` returns, so none waits in memory and none is missed. When a
    file can no longer be written, the disk being full say, capturing ends and `progress` is told, once.
    Raises UsageError if `folder` cannot be written.
    """

    def __init__(self, folder: Path, names: Mapping[int, str], progress: Callable[[str], None]) -> None:
        self.folder = folder
        self.frames = 0
        self._names = names
        self._progress = progress
        self._files: dict[str, PcapFile] = {}
        self._ended = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):  # permissions say nothing about read-only mounts
                pass
            for port in names:
                self._file_of(port)
        except OSError as error:
            self.close()
            reason = error.strerror or error
            raise UsageError(f"--pcap {folder}: {reason}. Choose a folder that can be written") from error

    def record(self, frames: Frames, selected: NDArray[np.int64] | None = None) -> None:
        """Write the `selected` frames (indices, int64[n]), or all of the batch."""
        if self._ended:
            return
        if selected is None:
            selected = np.arange(frames.count)
        now = time.time_ns()
        view = frames.data.data
        ports = frames.port[selected]
        try:
            for port in np.unique(ports).tolist():
                own = selected[ports == port]
                starts, lengths = frames.offset[own].tolist(), frames.length[own].tolist()
                self._file_of(port).write(
                    (now, view[at : at + size]) for at, size in zip(starts, lengths, strict=True)
                )
                self.frames += len(own)
        except OSError as error:
            self._ended = True
            self._progress(f"capture ends, the switch goes on: {self.folder}: {error.strerror or error}")

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def summary(self) -> str:
        """One line for an operator."""
        line = f"pcap: {self.frames} frames in {self.folder}"
        return f"{line}, incomplete" if self._ended else line

    def _file_of(self, port: int) -> PcapFile:
        name = self._names.get(port, f"port{port}")
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = PcapFile(self.folder / f"{name}.pcap")
        return file
