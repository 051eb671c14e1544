"""Long work on a thread that lets the others run."""

from __future__ import annotations

import time

# Work between two pauses, and a pause: long enough for another thread to take over.
_WORK_SECONDS, _PAUSE_SECONDS = 0.001, 0.0002


class LongWork:
    """Makes room for other threads in the midst of work that is not input or output; of one thread.

    Without it each of them waits for the switch interval of the interpreter, 5 ms, at each of its steps: an entry's way
    from its arrival to its acknowledgement has four.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()

    def step(self) -> None:
        """Pause if the work since the last pause has taken a millisecond."""
        if time.monotonic() - self._since >= _WORK_SECONDS:
            time.sleep(_PAUSE_SECONDS)
            self._since = time.monotonic()
