"""What is reported of a failed load, of KV or of encoder outputs: its one outcome, and a suspected answer. Fields on the wire. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.requests.affected import Cause
from penstock.rules import Trigger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.instrumentation.vllm.naming import Peer
    from penstock.instrumentation.vllm.requests.affected import Affected
    from penstock.instrumentation.vllm.requests.record import RequestRecord
    from penstock.rules import Decision

MODE_WORDS: Final = {
    number: name.removeprefix("FAILURE_MODE_").lower()
    for name, number in vars(c).items()
    if name.startswith("FAILURE_MODE_")
}
"""The word of each ``FAILURE_MODE_*``."""
# vLLM's finish reasons of answers that the client did not get, or left before their end.
_ABORTED: Final = "abort"
_NOT_DELIVERED: Final = frozenset({"", "error"})


def cause_of(record: RequestRecord, affected: Affected) -> Cause:
    """Return why a KV load failed, as far as the workers said."""
    if affected.collateral:
        return Cause(c.FAILURE_MODE_COLLATERAL, c.ERROR_TYPE_OTHER)
    if record.failure is not None:
        return Cause(record.failure.mode, record.failure.error_type, record.failure.rehearsal)
    if affected.trigger is Trigger.DEADLINE:
        return Cause(c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT)
    # A connector that names nothing but the blocks.
    return Cause(c.FAILURE_MODE_LOAD, c.ERROR_TYPE_OTHER)


def outcome_fields(
    affected: Affected,
    decision: Decision,
    cause: Cause,
    *,
    channel: int,
    attempt: int,
    peer: Peer | None,
    connector: str,
    policy_hash: str,
) -> dict[str, Any]:
    """Return the fields of the ``LoadOutcome`` of a decided load; *channel* is a ``CHANNEL_*``."""
    fields = _fields(channel, decision.outcome, decision.decided_by, cause, attempt, peer, connector)
    fields |= {
        "tokens_kept": affected.kept,
        "tokens_recomputed": affected.lost,
        "items_recomputed": len(affected.items),
        "policy_hash": policy_hash,
        "reason": decision.reason,
    }
    if decision.observed is not None:
        fields["observed_outcome"] = int(decision.observed.outcome)
        fields["observed_reason"] = decision.observed.reason
    return fields


def abandoned_cause(record: RequestRecord) -> Cause | None:
    """Return why the KV load of a request failed that ends before the failure is handled.

    Returns None if its load did not fail, or its outcome is reported.
    """
    if record.unreported is not None:
        return record.unreported.cause
    failure = record.failure
    if failure is None or record.is_decided:
        return None
    return Cause(failure.mode, failure.error_type, failure.rehearsal)


def abandoned_fields(record: RequestRecord, cause: Cause, connector: str) -> dict[str, Any]:
    """Return the fields of the ``LoadOutcome`` of such a request; *cause* is :func:`abandoned_cause`'s."""
    fields = _fields(
        c.CHANNEL_KV,
        c.OUTCOME_ABORTED,
        c.DECIDED_BY_VLLM,
        cause,
        record.present_attempt,
        record.load_peer,
        connector,
    )
    fields["reason"] = "the request ended before its failed load was handled"
    return fields


def _fields(
    channel: int,
    outcome: int,
    decided_by: int,
    cause: Cause,
    attempt: int,
    peer: Peer | None,
    connector: str,
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "channel": channel,
        "outcome": int(outcome),
        "decided_by": int(decided_by),
        "mode": cause.mode,
        "error_type": cause.error_type,
        "attempt": attempt,
        "connector": connector,
    }
    if peer is not None:
        fields["peer"] = peer.fields()
    return fields


def suspicions(
    record: RequestRecord, cause: Cause | None, finish_reason: str, output_tokens: int
) -> Iterator[dict[str, Any]]:
    """Yield the fields of an ``AnswerSuspected`` for each reason; none for an answer that was not delivered.

    Args:
        record: of the request.
        cause: why its last load failed, if nothing was done about that.
        finish_reason: vLLM's word.
        output_tokens: tokens of the answer.

    """
    if not output_tokens or finish_reason in _NOT_DELIVERED:
        return
    # A client that left while a load failed got no token of it.
    if cause is not None and finish_reason != _ABORTED:
        fields: dict[str, Any] = {
            "reason": c.SUSPECT_REASON_FAILED_READ,
            "channel": c.CHANNEL_KV,
            "mode": cause.mode,
            "error_type": cause.error_type,
            "remote_request_id": record.remote_request_id,
        }
        if record.load_peer is not None:
            fields["peer"] = record.load_peer.fields()
        yield fields
    misread = record.used_misread if record.misread is not None else None
    if misread is not None:
        yield {
            "reason": c.SUSPECT_REASON_OTHER_ENGINE,
            "channel": c.CHANNEL_KV,
            "peer": misread.peer.fields(),
            "named": misread.named.fields(),
            "named_owner": misread.owner,
            "remote_request_id": record.remote_request_id,
        }
    if record.nans:
        yield {"reason": c.SUSPECT_REASON_NAN, "nans_in_logits": record.nans}
