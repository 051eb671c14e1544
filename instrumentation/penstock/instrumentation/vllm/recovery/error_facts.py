"""What a client's machine can act upon: the object ``penstock`` of a failed request's error, and when to try again. Pure.

The contract is docs/reference/client-errors.md. What is not known is null, never false; nothing of the request's content is in it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming import UNKNOWN
from penstock.instrumentation.vllm.requests import MODE_WORDS
from penstock.proto.names import NANOS
from penstock.rules import DecidedBy, Trigger, trigger_of

if TYPE_CHECKING:
    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.requests import Cause
    from penstock.rules import Decision

ERROR_TYPE_WORDS: Final = {
    number: name.removeprefix("ERROR_TYPE_").lower()
    for name, number in vars(c).items()
    if name.startswith("ERROR_TYPE_")
}
"""The word of each ``ERROR_TYPE_*``."""

TEXT_MAX: Final = 256
"""Characters of a text in the object; the rest is cut."""
BYTES_MAX: Final = 10_240
"""Bytes of the object as it travels; a longer one is not ours."""
RETRY_MIN_S: Final = 1
RETRY_MAX_S: Final = 60
"""Bounds of ``retry_after_s``."""

# An attempt that the peer, or its own expiry, answered with "no longer there"; of a load that failed otherwise nobody knows.
_ASKED: Final = frozenset({c.FAILURE_MODE_PROBE, c.FAILURE_MODE_TRANSFER})


def error_facts(cause: Cause, peer: Peer | None, decision: Decision, what: str, wait_ns: int | None) -> str:
    """Return the object about a load of *what* (``KV`` or ``EC``) that must fail, as JSON in one line of ASCII.

    *wait_ns* is :func:`retry_after_s`'s.
    """
    known = peer is not None and peer.address != UNKNOWN
    facts = {
        "retryable": True,
        "channel": what.lower(),
        "peer": {
            "address": _text(peer.address) if peer is not None and known else None,
            "engine_id": _text(peer.engine_id) if peer is not None else None,
        },
        "mode": MODE_WORDS.get(cause.mode),
        "error_type": ERROR_TYPE_WORDS.get(cause.error_type),
        "decided_by": decision.decided_by.name.lower(),
        "policy": _text(decision.policy),
        "blocks_held": blocks_held(cause, decision),
        # No connector tells a reader when the lease ends.
        "held_until": None,
        "retry_after_s": retry_after_s(decision.decided_by, wait_ns),
    }
    return json.dumps(facts, separators=(",", ":"))


def decode(encoded: str) -> dict[str, Any] | None:
    """Return the object that :func:`error_facts` made; None for what it did not make."""
    if len(encoded) > BYTES_MAX:
        return None
    try:
        facts = json.loads(encoded)
    except (ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) and "retry_after_s" in facts else None


def blocks_held(cause: Cause, decision: Decision) -> bool | None:
    """Return whether the peer still holds what was to be loaded; None if that is not known, as after most failures.

    The cause of a quarantine is another request's failure.
    """
    if trigger_of(decision.reason) is Trigger.QUARANTINE:
        return None
    evicted = cause.error_type == c.ERROR_TYPE_EVICTED and cause.mode in _ASKED
    return False if evicted or cause.mode == c.FAILURE_MODE_EXPIRED else None


def retry_after_s(decided_by: DecidedBy, wait_ns: int | None) -> int:
    """Return after how many seconds a retry may have another result: 1 to 60, 1 where nothing says so.

    *wait_ns*: until the quarantine ends or the budget has room; None if no time brings that.
    """
    if decided_by not in (DecidedBy.QUARANTINE, DecidedBy.BUDGET):
        return RETRY_MIN_S
    if wait_ns is None:
        return RETRY_MAX_S if decided_by is DecidedBy.QUARANTINE else RETRY_MIN_S
    return min(max(-(-wait_ns // NANOS), RETRY_MIN_S), RETRY_MAX_S)


def _text(value: str) -> str | None:
    """Return a text, cut, that every JSON reader takes (no half of a surrogate pair); None for an empty one."""
    return value[:TEXT_MAX].encode(errors="replace").decode() or None
