"""A stream to the agent, as its owner sees it, and what both kinds have in common; sentences about its end; the messages of its owner's inbox. Imports no grpc."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class Tag(Enum):
    """The kind of a message."""

    WAKE = auto()
    STOP = auto()
    PARK = auto()
    RESUME = auto()
    RECONNECT = auto()
    FLUSH = auto()
    ANSWER = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of an inbox.

    Attributes:
        tag: its kind.
        sender: the stream that put an ANSWER or ENDED, compared by identity; None on other kinds.
        content: what an ANSWER, ENDED or FLUSH carries.

    """

    tag: Tag
    sender: object = None
    content: Any = None


_LONGEST: Final = 300

# A part of grpc's text, in lower case, and its meaning. The first that matches counts.
_MEANINGS: Final = (
    ("no such file or directory", "there is no such socket; start penstock-agent, and mount the directory of its socket here"),
    ("permission denied", "this user may not open the socket; run the engine with the group of the agent's socket"),
    ("http1.x server", "something else listens there; PENSTOCK_ENDPOINT takes what penstock-agent has as --listen"),
    ("failed parsing http/2", "something else listens there; PENSTOCK_ENDPOINT takes what penstock-agent has as --listen"),
    ("connection refused", "nothing listens there; start penstock-agent, or correct PENSTOCK_ENDPOINT"),
    ("errors resolving", "the host name has no address; correct PENSTOCK_ENDPOINT"),
    ("dns resolution failed", "the host name has no address; correct PENSTOCK_ENDPOINT"),
    ("no route to host", "the network has no way there"),
    ("network is unreachable", "the network has no way there"),
    ("timed out", "it does not answer in time"),
    ("timeout", "it does not answer in time"),
    ("failed to connect to all addresses", "it cannot be reached"),
    ("goaway", "the agent ended the connection"),
    ("socket closed", "the agent ended the connection"),
    ("connection reset", "the connection broke off"),
    ("broken pipe", "the connection broke off"),
    ("recvmsg", "the connection broke off"),
)  # fmt: skip
T = TypeVar("T")

_MEBIBYTE: Final = 1 << 20

OPTIONS: Final = (
    # A stopped peer on a unix socket is found by HTTP/2 pings alone, within 5 seconds: 2 of silence, 3 without an
    # answer. Without the third option it takes a minute.
    ("grpc.keepalive_time_ms", 2_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Each attempt has a channel of its own, and our back-off is the only one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # A sidecar is never behind a proxy; the host's http_proxy is not for us.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _MEBIBYTE),
    ("grpc.max_send_message_length", _MEBIBYTE),
)

ANSWERS_MAX: Final = 256
"""Answers that may wait in the inbox; an agent never sends that many ahead."""

CLOSE_WAIT: Final = 0.5
"""Seconds for which :meth:`Stream.close` waits."""


def explain_end(code: str, details: str) -> str:
    """Return why a stream ended, for an operator, in at most 300 characters.

    Args:
        code: name of its status (``"UNAVAILABLE"``).
        details: text of its status, by grpc or by the agent.

    """
    if code == "UNIMPLEMENTED":
        return (
            "what listens there does not know this call; PENSTOCK_ENDPOINT takes what penstock-agent has as --listen, "
            "or the agent is too old"
        )
    text = " ".join(details.split())
    if code == "UNAVAILABLE":
        lower = text.lower()
        text = next((meaning for sign, meaning in _MEANINGS if sign in lower), text)
    return text[:_LONGEST] or f"the stream ended ({code})"


class StreamEnd:
    """How a stream ended: a status code by name (``"UNAVAILABLE"``) and its text."""

    def __init__(self, code: str, details: str) -> None:
        self.code = code
        self.details = details

    def __repr__(self) -> str:
        return f"{self.code}: {self.details}"

    @property
    def reason(self) -> str:
        """A sentence for an operator."""
        return explain_end(self.code, self.details)


class Stream(Generic[T]):
    """A bidirectional call on a channel of its own.

    Its answers arrive in an inbox as ANSWER, its end as one ENDED with a :class:`StreamEnd`.
    """

    def __init__(self, parse: Callable[[bytes], T], inbox: queue.SimpleQueue[Message]) -> None:
        self._parse = parse
        self._inbox = inbox
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    @property
    def backlog(self) -> int:
        """How many requests grpc has not fetched yet."""
        return self._requests.qsize()

    def send(self, request: bytes) -> None:
        """Queue one serialized request; the caller keeps the backlog bounded."""
        self._requests.put(request)

    def close(self) -> None:
        """Cancel the call and close the channel; waits at most ``CLOSE_WAIT`` seconds for their end."""
        raise NotImplementedError

    def _deliver(self, answer: bytes) -> StreamEnd | None:
        """Put one answer into the inbox; return why the stream cannot go on, if it cannot."""
        if self._inbox.qsize() >= ANSWERS_MAX:
            return StreamEnd("RESOURCE_EXHAUSTED", f"more than {ANSWERS_MAX} answers waited")
        try:
            parsed = self._parse(answer)
        except Exception as error:  # noqa: BLE001  (an answer that cannot be parsed)
            return StreamEnd("INTERNAL", f"{type(error).__name__}: {error}")
        self._inbox.put(Message(Tag.ANSWER, self, parsed))
        return None

    def _tell_end(self, ended: StreamEnd) -> None:
        self._inbox.put(Message(Tag.ENDED, self, ended))
