"""What the threads of this process execute: functions, files and lines; no values, no arguments, no source text. Imports protobuf.

The frames of other threads are read without stopping them, so that a thread that hangs is seen, and none waits.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from penstock.proto.v1.policy_pb2 import Report, StackDump, ThreadStack

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

THREADS_MAX: Final = 128
FRAMES_MAX: Final = 64
BYTES_MAX: Final = 64 << 10
TEXT_MAX: Final = 128
"""Characters of one name."""
INTERVAL: Final = 1.0
"""Seconds between two dumps."""

NOT_ALLOWED: Final = (
    "this engine does not show its stacks: it was not started with PENSTOCK_ALLOW_STACKS=1 in its environment"
)
TOO_SOON: Final = "this engine has shown its stacks less than a second ago; ask again"


class StackDumper:
    """Answers questions for the stacks of this process; on the policy client's thread."""

    def __init__(self, *, allowed: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """Refuse every question unless *allowed*; *clock* is monotonic seconds."""
        self._allowed = allowed
        self._clock = clock
        self._next_at = 0.0

    def answer(self, question: int, process: str) -> Report:
        """Return the answer to *question*; *process* is what this process is."""
        dump = StackDump(id=question, time_unix_nano=time.time_ns(), process=process, pid=os.getpid())
        if not self._allowed:
            dump.refusal = NOT_ALLOWED
        elif self._clock() < self._next_at:
            dump.refusal = TOO_SOON
        else:
            self._next_at = self._clock() + INTERVAL
            _fill(dump)
        return Report(stacks=dump)


def _fill(dump: StackDump) -> None:
    """Add the stacks: the main thread first, and no more than :data:`BYTES_MAX`."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    main = threading.main_thread().ident
    # A copy: the threads go on meanwhile.
    frames = sorted(_current_frames().items(), key=lambda each: (each[0] != main, each[0]))
    size = dump.ByteSize()
    for ident, frame in frames:
        thread = threads.get(ident)
        name, daemon = (thread.name, thread.daemon) if thread is not None else (f"thread {ident}", True)
        stack = _stack(frame, name, daemon=daemon)
        size += stack.ByteSize() + 4
        if len(dump.threads) >= THREADS_MAX or size > BYTES_MAX:
            dump.threads_left_out = len(frames) - len(dump.threads)
            return
        dump.threads.append(stack)


def _current_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread.

    CPython 3.11 makes them while it holds a lock and the GIL; a collection of garbage that begins amid that may wait for the
    lock, for ever (python/cpython#106883). So none may begin. From 3.12 on collections begin elsewhere.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()  # noqa: SLF001  (CPython's only way)
    finally:
        if collects:
            gc.enable()


def _stack(frame: FrameType | None, name: str, *, daemon: bool) -> ThreadStack:
    stack = ThreadStack(name=_text(name), daemon=daemon)
    while frame is not None:
        if len(stack.frames) < FRAMES_MAX:
            code = frame.f_code
            stack.frames.add(
                function=_text(code.co_qualname),
                file=_text(os.path.basename(code.co_filename)),  # noqa: PTH119  (a Path costs ten times as much)
                line=frame.f_lineno or code.co_firstlineno,
                module=_text(str(frame.f_globals.get("__name__", ""))),
            )
        else:
            stack.frames_left_out += 1
        frame = frame.f_back
    return stack


def _text(text: str) -> str:
    """Return *text* cut, and such that protobuf takes it."""
    return text[:TEXT_MAX].encode("utf-8", "replace").decode()
