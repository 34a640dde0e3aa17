"""The one thread that makes a rank's calls, in the order in which they were asked for.

Backward passes ask from autograd's threads and go on meanwhile; the calls' hot loops run without the GIL.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

from switchreduce.errors import UsageError
from switchreduce.worker.communicator import Communicator

CLOSE_TIMEOUT = 2.0  # seconds for the calls asked for to finish

Result = TypeVar("Result")


class _Task(Generic[Result]):
    def __init__(self, work: Callable[[Communicator], Result]) -> None:
        self.work = work
        self.future: Future[Result] = Future()

    def run(self, communicator: Communicator) -> None:
        try:
            result = self.work(communicator)
        except BaseException as error:  # whatever it is, somebody waits for it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Engine:
    """Owns `communicator`. Not a ThreadPoolExecutor: that one's exit waits for a call that others may never
    join, and this thread dies with its process, whereupon the others hear of it."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._process = os.getpid()
        self._closed = False
        self._thread = Thread(target=self._run, name="switchreduce-calls", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(self, work: Callable[[Communicator], Result]) -> Future[Result]:
        """Queue `work`, to be called with the communicator; its result or error is the future's."""
        if os.getpid() != self._process:
            raise UsageError("this process was forked from the rank that joined: connect in it anew")
        if self._closed:
            raise UsageError("this rank has left its job: connect again")
        task = _Task(work)
        self._tasks.put(task)
        return task.future

    def close(self) -> None:
        """Finish the calls asked for and leave the job; where the others do not come, after CLOSE_TIMEOUT."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._tasks.put(None)
        self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.run(self._communicator)
        self._communicator.close()
