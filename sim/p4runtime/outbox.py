"""What still has to be sent on one controller's stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from p4.v1 import p4runtime_pb2


class Outbox:
    """A queue between the threads that have something to say and the one that writes the stream.

    Notices (arbitration, errors) are always kept; who has a packet-in asks ``has_room`` first, which says no
    when ``max_packets`` messages wait: a controller that does not read loses packets and slows nothing down.
    """

    def __init__(self, max_packets: int) -> None:
        self._max_packets = max_packets
        self._messages: deque[p4runtime_pb2.StreamMessageResponse] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, message: p4runtime_pb2.StreamMessageResponse) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify()

    def has_room(self) -> bool:
        """Whether a packet-in may be queued."""
        return not self._closed and len(self._messages) < self._max_packets

    def close(self) -> None:
        """Ends the iteration once what is queued has been handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __iter__(self) -> Iterator[p4runtime_pb2.StreamMessageResponse]:
        while True:
            with self._changed:
                while not self._messages and not self._closed:
                    self._changed.wait()
                if not self._messages:
                    return
                message = self._messages.popleft()
            yield message
