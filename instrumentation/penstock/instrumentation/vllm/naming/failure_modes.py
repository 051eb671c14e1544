"""Classifies a failed transfer in the wire's words: its mode, its error type, the two hashes that differ.

Pure: from vLLM's name of the failure, the exception and its text. Where an exception does not say more, the class
is ``other``: no guess is better than a wrong one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT_MAX: Final = 1024
"""Bytes of an error's text that go on the wire."""

_MODES: Final = {
    "handshake_setup_failed": c.FAILURE_MODE_HANDSHAKE,
    "handshake_failed": c.FAILURE_MODE_HANDSHAKE,
    "push_handshake_failed": c.FAILURE_MODE_HANDSHAKE,
    "push_reg_handshake_failed": c.FAILURE_MODE_HANDSHAKE,
    "push_setup_failed": c.FAILURE_MODE_SETUP,
    "read_setup_failed": c.FAILURE_MODE_SETUP,
    "heartbeat_notif_failed": c.FAILURE_MODE_NOTIFICATION,
    "push_reg_notif_failed": c.FAILURE_MODE_NOTIFICATION,
    "notification_failed": c.FAILURE_MODE_NOTIFICATION,
    "transfer_setup_failed": c.FAILURE_MODE_SETUP,
    "transfer_failed": c.FAILURE_MODE_TRANSFER,
    "transfer_exception": c.FAILURE_MODE_EXCEPTION,
    "transfer_release_failed": c.FAILURE_MODE_RELEASE,
}

# A later vLLM may name a failure that is not above; the first word that is in the name says the mode.
_MODE_WORDS: Final = (
    ("handshake", c.FAILURE_MODE_HANDSHAKE),
    ("notif", c.FAILURE_MODE_NOTIFICATION),
    ("release", c.FAILURE_MODE_RELEASE),
    ("setup", c.FAILURE_MODE_SETUP),
    ("exception", c.FAILURE_MODE_EXCEPTION),
    ("timeout", c.FAILURE_MODE_TIMEOUT),
    ("transfer", c.FAILURE_MODE_TRANSFER),
)

# By the class's name, anywhere in its ancestry, so that neither zmq nor msgspec nor NIXL is imported here.
# zmq.Again is the handshake's receive timeout; a closed port looks the same, because zmq reconnects silently.
_CLASSES: Final = {
    "Again": c.ERROR_TYPE_TIMEOUT,
    "TimeoutError": c.ERROR_TYPE_TIMEOUT,
    "ConnectionRefusedError": c.ERROR_TYPE_REFUSED,
    "ConnectionError": c.ERROR_TYPE_REMOTE_RESET,
    "nixlRemoteDisconnectError": c.ERROR_TYPE_REMOTE_RESET,
    "nixlMismatchError": c.ERROR_TYPE_INCOMPATIBLE,
    "MsgspecError": c.ERROR_TYPE_DECODE,
    "DecodeError": c.ERROR_TYPE_DECODE,
    "UnicodeDecodeError": c.ERROR_TYPE_DECODE,
}

# What reading a file raises that is gone, cut short or something else.
_STORE_CLASSES: Final = {
    "FileNotFoundError": c.ERROR_TYPE_EVICTED,
    "SafetensorError": c.ERROR_TYPE_CORRUPT,
    "KeyError": c.ERROR_TYPE_CORRUPT,
    "EOFError": c.ERROR_TYPE_CORRUPT,
}

# "Resource temporarily unavailable" is all that zmq says.
_SILENCE: Final = "the peer did not answer before the receive timeout"

# By the text, where vLLM raises a plain RuntimeError.
_TEXTS: Final = (
    ("compatibility hash mismatch", c.ERROR_TYPE_INCOMPATIBLE),
    ("failed to decode", c.ERROR_TYPE_DECODE),
    ("engine id mismatch", c.ERROR_TYPE_WRONG_ENGINE),
    ("connection refused", c.ERROR_TYPE_REFUSED),
    ("remote_disconnect", c.ERROR_TYPE_REMOTE_RESET),
    ("remote disconnect", c.ERROR_TYPE_REMOTE_RESET),
    ("connection reset", c.ERROR_TYPE_REMOTE_RESET),
    ("connection closed", c.ERROR_TYPE_REMOTE_RESET),
    ("timed out", c.ERROR_TYPE_TIMEOUT),
)

# What vLLM checks during a handshake and answers with one of these is a configuration that does not fit.
_CHECKS: Final = frozenset({"AssertionError", "NotImplementedError", "ValueError"})

# A handshake's time-out after which the peer was asked and refused the connection.
_REFUSAL: Final = "the peer did not answer before the receive timeout, and refused a connection after it: nothing listens there"

_NOTE: Final = "penstock_note"

_HASHES: Final = re.compile(r"Local: (?P<local>\w+), *Remote: (?P<remote>\w+)")


@dataclass(frozen=True, slots=True)
class ExceptionNote:
    """What Penstock found out about an exception of vLLM's that it does not say itself.

    Attributes:
        refused: the peer of a handshake that timed out refuses connections.
        factors: names of the factors in which an incompatible peer differs.
        rehearsal: a fault drill raised it.

    """

    refused: bool = False
    factors: tuple[str, ...] = ()
    rehearsal: bool = False


def annotate(error: BaseException, note: ExceptionNote) -> None:
    """Attach *note* to an exception; it reaches :func:`classify`, on any thread."""
    setattr(error, _NOTE, note)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, classified.

    Attributes:
        mode: ``FAILURE_MODE_*``.
        error_type: ``ERROR_TYPE_*``.
        upstream_type: vLLM's own name, empty where it has none.
        error_class: the exception's class, empty where there was none.
        error_text: cut to 1 KiB.
        hashes: local and remote compatibility hash of an incompatible handshake.
        factors: names of what differs in an incompatible handshake, where it is known.
        rehearsal: a fault drill caused it.

    """

    mode: int
    error_type: int
    upstream_type: str = ""
    error_class: str = ""
    error_text: str = ""
    hashes: tuple[str, str] | None = None
    factors: tuple[str, ...] = ()
    rehearsal: bool = False

    def fields(self) -> dict[str, Any]:
        """Return its fields of the wire's ``TransferFailure``."""
        fields: dict[str, Any] = {
            "mode": self.mode,
            "error_type": self.error_type,
            "upstream_type": self.upstream_type,
            "error_class": self.error_class,
            "error_text": self.error_text,
        }
        if self.hashes is not None:
            local, remote = self.hashes
            fields["incompatibility"] = {
                "local_hash": local,
                "remote_hash": remote,
                "factors": list(self.factors),
            }
        return fields


def classify(upstream_type: str, error: BaseException | None, text: str = "") -> Failure:
    """Classify a failure that vLLM calls *upstream_type*; *text* is what is known where there is no exception."""
    mode = mode_of(upstream_type)
    note: ExceptionNote = getattr(error, _NOTE, ExceptionNote())
    words = cut(_words(error, note) or text)
    return Failure(
        mode=mode,
        error_type=c.ERROR_TYPE_REFUSED if note.refused else error_type_of(error, mode, words),
        upstream_type=upstream_type,
        error_class=type(error).__name__ if error is not None else "",
        error_text=words,
        hashes=hashes_in(words),
        factors=note.factors,
        rehearsal=note.rehearsal,
    )


def of_store(error: BaseException, mode: int) -> Failure:
    """Classify what reading from or writing to a store has raised."""
    text = cut(str(error))
    known = (_STORE_CLASSES.get(kind.__name__) for kind in type(error).__mro__)
    error_type = next(filter(None, known), None)
    if error_type is None:
        error_type = error_type_of(error, mode, text)
    return Failure(mode, error_type, error_class=type(error).__name__, error_text=text)


def is_silence(error: BaseException) -> bool:
    """Return whether it is ZeroMQ's receive timeout: the peer did not answer, for whatever reason."""
    return type(error).__name__ == "Again"


def _words(error: BaseException | None, note: ExceptionNote) -> str:
    if error is None:
        return ""
    if note.refused:
        return f"{_REFUSAL} ({error})"
    return f"{_SILENCE} ({error})" if is_silence(error) else str(error)


def mode_of(upstream_type: str) -> int:
    """Return the mode of a failure by vLLM's name of it; ``load`` for a name that says nothing."""
    known = _MODES.get(upstream_type)
    if known is not None:
        return known
    return next((mode for word, mode in _MODE_WORDS if word in upstream_type), c.FAILURE_MODE_LOAD)


def error_type_of(error: BaseException | None, mode: int, text: str) -> int:
    """Return the class of an error; ``other`` where neither its class nor its text says more."""
    lowered = text.lower()
    for words, error_type in _TEXTS:
        if words in lowered:
            return error_type
    for each in _causes(error):
        for ancestor in type(each).__mro__:
            found = _CLASSES.get(ancestor.__name__)
            if found is not None:
                return found
    if mode == c.FAILURE_MODE_HANDSHAKE and type(error).__name__ in _CHECKS:
        return c.ERROR_TYPE_INCOMPATIBLE
    return c.ERROR_TYPE_OTHER


def cut(text: str) -> str:
    """Return at most 1 KiB of *text*, without half a character."""
    return text.encode(errors="replace")[:TEXT_MAX].decode(errors="ignore")


def hashes_in(text: str) -> tuple[str, str] | None:
    """Return the local and the remote hash that vLLM's refusal of an incompatible peer names."""
    if "compatibility hash mismatch" not in text.lower():
        return None
    match = _HASHES.search(text)
    return (match["local"], match["remote"]) if match is not None else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and what it was raised from, at most eight."""
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__
