"""Why the answer of a request that ends may be wrong, as far as its own engine knows: fields of ``AnswerSuspected``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.instrumentation.vllm.requests.affected import Cause
    from penstock.instrumentation.vllm.requests.record import RequestRecord

# vLLM's finish reasons of answers that the client did not get, or left before their end.
_ABORTED: Final = "abort"
_NOT_DELIVERED: Final = frozenset({"", "error"})


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
    if record.nans:
        yield {"reason": c.SUSPECT_REASON_NAN, "nans_in_logits": record.nans}
