"""The one outcome that is reported of a failed load of encoder outputs: its fields on the wire. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.resilience import Trigger
from penstock.instrumentation.vllm.requests import Cause

if TYPE_CHECKING:
    from penstock.instrumentation.resilience import Decision
    from penstock.instrumentation.vllm.naming import Peer


@dataclass(frozen=True, slots=True)
class EcCause(Cause):
    """Why an item could not be loaded, and whom it was to come from, where that is known."""

    peer: Peer | None = None


@dataclass(frozen=True, slots=True)
class EcAffected:
    """A request that cannot have items as it should.

    Attributes:
        items: that it needs and does not have.
        kept: computed tokens that survive.
        lost: computed tokens that do not.
        local_media: this engine has the media to encode all *items* from.
        exported: another connector may have passed tainted blocks on.
        held: it waits with blocks that cannot be taken from it, so it cannot be rewound.
        collateral: it shares blocks with a request that used a bad item, and used none itself.
        trigger: what made it so.

    """

    request_id: str
    items: tuple[str, ...]
    kept: int
    lost: int = 0
    local_media: bool = True
    exported: bool = False
    held: bool = False
    collateral: bool = False
    trigger: Trigger = Trigger.FAILURE


def cause_of(affected: EcAffected, cause: EcCause) -> EcCause:
    """Return the *cause* as it is for an affected request."""
    if affected.collateral:
        return EcCause(c.FAILURE_MODE_COLLATERAL, c.ERROR_TYPE_OTHER, cause.rehearsal, cause.peer)
    return cause


def outcome_fields(
    affected: EcAffected,
    decision: Decision,
    cause: EcCause,
    *,
    attempt: int,
    policy_hash: str,
    connector: str,
) -> dict[str, Any]:
    """Return the fields of the ``LoadOutcome``."""
    fields: dict[str, Any] = {
        "channel": c.CHANNEL_EC,
        "outcome": int(decision.outcome),
        "decided_by": int(decision.decided_by),
        "mode": cause.mode,
        "error_type": cause.error_type,
        "attempt": attempt,
        "tokens_kept": affected.kept,
        "tokens_recomputed": affected.lost,
        "items_recomputed": len(affected.items),
        "policy_hash": policy_hash,
        "reason": decision.reason,
        "connector": connector,
    }
    if cause.peer is not None:
        fields["peer"] = cause.peer.fields()
    if decision.observed is not None:
        fields["observed_outcome"] = int(decision.observed.outcome)
        fields["observed_reason"] = decision.observed.reason
    return fields
