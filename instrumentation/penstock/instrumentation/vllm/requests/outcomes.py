"""The one outcome that is reported of a failed load: its fields on the wire.

Pure. What is decided, and that the first decision on an attempt stays, is :mod:`judge`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.resilience import Trigger

if TYPE_CHECKING:
    from penstock.instrumentation.resilience import Decision
    from penstock.instrumentation.vllm.requests.record import RequestRecord

MODE_WORDS: Final = {
    number: name.removeprefix("FAILURE_MODE_").lower()
    for name, number in vars(c).items()
    if name.startswith("FAILURE_MODE_")
}
"""The word of each ``FAILURE_MODE_*``."""


@dataclass(frozen=True, slots=True)
class Affected:
    """A request whose load failed: tokens whose state survives and tokens that were lost.

    Attributes:
        kept: tokens.
        lost: tokens.
        exported: another connector may have passed tainted blocks on.
        held: it waits with blocks that cannot be taken from it, so it cannot be rewound.
        pinned: its load was given up while a transfer may still write to its blocks, so it cannot be rewound.
        without_media: the workers were not given the media of an input that it would need again.
        collateral: it shares blocks with the request whose load failed, its own did not fail.
        trigger: what made the load fail.

    """

    request_id: str
    kept: int
    lost: int
    exported: bool = False
    held: bool = False
    pinned: bool = False
    without_media: bool = False
    collateral: bool = False
    trigger: Trigger = Trigger.FAILURE


@dataclass(frozen=True, slots=True)
class Cause:
    """Of a failed load: ``FAILURE_MODE_*`` (0 where nothing was attempted), ``ERROR_TYPE_*``, and whether a drill did it."""

    mode: int
    error_type: int
    rehearsal: bool = False


def cause_of(record: RequestRecord, affected: Affected) -> Cause:
    """Return why a load failed, as far as the workers said."""
    if affected.collateral:
        return Cause(c.FAILURE_MODE_COLLATERAL, c.ERROR_TYPE_OTHER)
    if record.failure is not None:
        return Cause(record.failure.mode, record.failure.error_type, record.failure.rehearsal)
    if affected.trigger is Trigger.DEADLINE:
        return Cause(c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    # A connector that tells nothing but the blocks: the load failed, that is all.
    return Cause(c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER)


def outcome_fields(
    record: RequestRecord, affected: Affected, decision: Decision, cause: Cause, policy_hash: str
) -> dict[str, Any]:
    """Return the fields of the ``LoadOutcome`` of a decided load, without the connector."""
    fields = _fields(record, decision.outcome, decision.decided_by, cause)
    fields |= {
        "tokens_kept": affected.kept,
        "tokens_recomputed": affected.lost,
        "policy_hash": policy_hash,
        "reason": decision.reason,
    }
    if decision.observed is not None:
        fields["observed_outcome"] = int(decision.observed.outcome)
        fields["observed_reason"] = decision.observed.reason
    return fields


def abandoned_fields(record: RequestRecord) -> dict[str, Any] | None:
    """Return the fields of the ``LoadOutcome`` of a request that leaves with a failed load nobody decided about.

    Returns None if its load did not fail, or its outcome is decided.
    """
    if record.failure is None or record.is_decided:
        return None
    cause = Cause(record.failure.mode, record.failure.error_type)
    fields = _fields(record, c.OUTCOME_ABORTED, c.DECIDED_BY_VLLM, cause)
    fields["reason"] = "the request ended before its failed load was handled"
    return fields


def _fields(record: RequestRecord, outcome: int, decided_by: int, cause: Cause) -> dict[str, Any]:
    failure = record.failure
    peer = failure.peer if failure is not None else record.peer
    fields: dict[str, Any] = {
        "channel": c.CHANNEL_KV,
        "outcome": int(outcome),
        "decided_by": int(decided_by),
        "mode": cause.mode,
        "error_type": cause.error_type,
        "attempt": record.present_attempt,
    }
    if peer is not None:
        fields["peer"] = peer.fields()
    return fields
