"""Both kinds of streams, by turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.transport import stream_loop, streams
from penstock.instrumentation.transport.loop_stream import LoopStream
from penstock.instrumentation.transport.threaded_stream import ThreadedStream

if TYPE_CHECKING:
    from penstock.instrumentation.transport import Stream

NO_VERSION = (1_000_000,)
"""A version of grpc that does not come: before it, each stream has threads of its own."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a loop's thread the time to begin that a busy machine needs; later, streams would have threads."""
    monkeypatch.setattr(stream_loop, "_BEGIN_WITHIN", 60.0)


@pytest.fixture(params=["loop", "threads"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[Stream[Any]]:
    """Have streams opened of one kind; return it."""
    if request.param == "loop":
        return LoopStream
    monkeypatch.setattr(streams, "SEPARATE_SINCE", NO_VERSION)
    return ThreadedStream
