"""Which requests are vLLM's own, sent to free the blocks of a prefill whose reader was rejected or has failed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.proto.v1.common_pb2 import ROLE_DECODE

if TYPE_CHECKING:
    from penstock.proto.v1.events_pb2 import RequestClosed

CLEAN_UP: Final = "clean-up"
"""What lists say of such a request in place of an outcome and a finish reason."""

_ABORTED = "abort"


def is_clean_up(closing: RequestClosed) -> bool:
    """Return whether a request is a clean-up: a prompt of one made-up token, aborted as it arrives.

    vLLM's API server sends it (``AsyncLLM.notify_kv_transfer_request_rejected``) with the transfer parameters of a user's
    request that got an error. No user waits for it. A user's own one-token prompt that was aborted before its first step is
    taken for one, too: it does the same.
    """
    return (
        closing.finish_reason == _ABORTED
        and closing.prompt_tokens == 1
        and closing.kv_role == ROLE_DECODE
        and not closing.scheduled_time_unix_nano
    )
