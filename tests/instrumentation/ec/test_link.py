"""A consumer's connection to one producer."""

from __future__ import annotations

from typing import Any

import pytest
import zmq
from penstock.instrumentation.vllm.zmq_ec.link import Link


def test_nothing_is_left_open_by_a_connection_that_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without descriptors for the monitor the socket goes too: one that stays would hold up the context's end for ever."""
    made: list[zmq.Socket[bytes]] = []

    def exhausted(socket: zmq.Socket[bytes], *_arguments: Any) -> Any:
        made.append(socket)
        raise zmq.ZMQError(24, "Too many open files")

    monkeypatch.setattr(zmq.Socket, "get_monitor_socket", exhausted)
    context = zmq.Context()
    try:
        with pytest.raises(zmq.ZMQError, match="Too many open files"):
            Link(context, "127.0.0.1:9")
        assert [each.closed for each in made] == [True]
    finally:
        context.destroy(linger=0)
