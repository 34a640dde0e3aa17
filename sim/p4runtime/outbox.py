"""What still has to be sent on one controller's stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from p4.v1 import p4runtime_pb2


class Outbox:
    """A queue between the threads that have something to say and the one that writes the stream.

    Notices (arbitration, errors) are always kept; packet-ins only while fewer than ``max_packets`` wait, so
    that a controller which does not read loses packets and never slows the data plane down.
    """

    def __init__(self, max_packets: int) -> None:
        self._max_packets = max_packets
        self._messages: deque[p4runtime_pb2.StreamMessageResponse] = deque()
        self._packets_waiting = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, message: p4runtime_pb2.StreamMessageResponse) -> None:
        """Queues a notice."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify()

    def offer_packet(self, message: p4runtime_pb2.StreamMessageResponse) -> bool:
        """Queues a packet-in; False when the queue is full or closed and the packet is lost."""
        with self._changed:
            if self._closed or self._packets_waiting >= self._max_packets:
                return False
            self._packets_waiting += 1
            self._messages.append(message)
            self._changed.notify()
            return True

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
                if message.HasField("packet"):
                    self._packets_waiting -= 1
            yield message
