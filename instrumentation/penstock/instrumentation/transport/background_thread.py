"""A daemon thread with one inbox: the base of the exporter and of the policy client.

Everything that concerns the thread arrives in its inbox, and every wait on it ends at
the next deadline, so the thread sleeps when there is nothing to do. An error does not
end it: the error is counted, the stream is closed, and after a pause the thread goes on,
unless the process is ending, in which nothing begins any more. Before the next attempt to connect it waits by a
:class:`Backoff`.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.instrumentation.core import guard, is_end_of_process
from penstock.instrumentation.transport.stream import Message, Tag
from penstock.instrumentation.transport.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable

ERROR_PAUSE: Final = 1.0
"""Seconds of rest after an error of our own."""

PARKED_MAX: Final = 60.0
"""Seconds after which a parked thread goes on without :meth:`BackgroundThread.resume`."""

_LONGEST_WAIT: Final = 60.0

_WAKE = Message(Tag.WAKE)
_RESUME = Message(Tag.RESUME)


class BackgroundThread:
    """Base of the two threads. Its public methods may be called from any thread and do not raise."""

    def __init__(self, name: str) -> None:
        self.name = name
        # SimpleQueue.put is re-entrant: a signal handler or a destructor may emit while the same thread is in it.
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.finished = False
        self.streams = Streams()
        self._halt = threading.Event()
        self._parked = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system has no thread left."""
        self._thread.start()

    def wake(self) -> None:
        """Make the thread do what is due now."""
        self.inbox.put(_WAKE)

    def request_stop(self) -> None:
        """Ask the thread to end, and do not wait."""
        self._halt.set()
        self.inbox.put(Message(Tag.STOP))

    def join(self, timeout: float) -> bool:
        """Wait at most *timeout* seconds for the thread's end; return whether it has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def request_park(self) -> None:
        """Ask the thread to close its stream and to wait for :meth:`resume`."""
        self._parked.clear()
        self.inbox.put(Message(Tag.PARK))

    def wait_parked(self, timeout: float) -> bool:
        """Wait at most *timeout* seconds until the thread is parked; return whether it is, or is not alive."""
        return not self._thread.is_alive() or self._parked.wait(max(0.0, timeout))

    def resume(self) -> None:
        """End the wait that :meth:`request_park` began."""
        self.inbox.put(_RESUME)

    def _run(self) -> None:
        while not self.finished:
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001  (the thread never dies)
                guard.record(self.name, error)
                self._recover(error)
        try:
            self._close()
        except Exception as error:  # noqa: BLE001  (it ends here)
            guard.record(self.name, error)
        self.streams.leave()

    def _recover(self, failure: Exception) -> None:
        try:
            self._close()
        except Exception as error:  # noqa: BLE001  (goes on with a new stream)
            guard.record(self.name, error)
        if is_end_of_process(failure) or self._halt.wait(ERROR_PAUSE):
            # It failed while it, or the process, was ending; there is no second try at that.
            self.finished = True

    def _turn(self) -> None:
        timeout = min(self._wait(time.monotonic()), _LONGEST_WAIT)
        try:
            message = self.inbox.get(timeout=max(0.0, timeout))
        except queue.Empty:
            message = _WAKE
        if message.tag is Tag.PARK:
            self._close()
            self.streams.leave()
            self._parked.set()
            message = self._wait_for_resume(time.monotonic() + PARKED_MAX)
        self._handle(message)
        self._tick(time.monotonic())

    def _wait_for_resume(self, deadline: float) -> Message:
        """Wait for RESUME or STOP, until *deadline* on the monotonic clock; return it, or RESUME at the deadline."""
        while True:
            try:
                message = self.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return _RESUME
            if message.tag in (Tag.RESUME, Tag.STOP):
                return message

    def _wait(self, now: float) -> float:
        """Return the seconds until :meth:`_tick` has something to do."""
        raise NotImplementedError

    def _handle(self, message: Message) -> None:
        """Process one message. Those of a stream that is closed are to be ignored."""
        raise NotImplementedError

    def _tick(self, now: float) -> None:
        """Do what is due at *now*, on the monotonic clock."""
        raise NotImplementedError

    def _close(self) -> None:
        """Close the stream, if there is one. Idempotent."""
        raise NotImplementedError


BACKOFF_INITIAL: Final = 0.1
BACKOFF_MAXIMUM: Final = 5.0
"""Seconds before the second attempt to connect, and the longest between two."""


class Backoff:
    """Exponential with jitter: between half and all of 0.1, 0.2, 0.4 ... 5 seconds."""

    def __init__(self, spread: Callable[[], float] = random.random) -> None:
        """Start at the shortest; *spread* returns the jitter, in [0, 1)."""
        self._spread = spread
        self._ceiling = BACKOFF_INITIAL

    def next(self) -> float:
        """Return the seconds to wait, and wait longer next time."""
        wait = self._ceiling * (0.5 + 0.5 * self._spread())
        self._ceiling = min(self._ceiling * 2, BACKOFF_MAXIMUM)
        return wait

    def longest(self) -> float:
        """Return the longest wait: for an error that another attempt will not change soon."""
        self._ceiling = BACKOFF_MAXIMUM
        return self.next()

    def reset(self) -> None:
        """Start again at the shortest, after an attempt that succeeded."""
        self._ceiling = BACKOFF_INITIAL
