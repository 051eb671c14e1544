"""Inputs whose media the workers do not have, so that vLLM does not let them encode those.

vLLM leaves out of a new request what lies in its computed prefix (``strip_covered_mm_data``), and does not send it again to its V1
runner when a request goes back. To encode such an input ends the engine ("Encoder cache miss"). Its V2 runner gets all inputs again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_WAITING: Final = "WAITING"


class WorkerEncoderInputs:
    """What the workers of one scheduler know of the inputs of its requests; on its thread."""

    def __init__(self, scheduler: Any) -> None:
        """Track the requests of *scheduler*."""
        self._scheduler = scheduler
        self._resends_inputs = bool(getattr(scheduler, "use_v2_model_runner", False))
        # By request, the indexes of its inputs without media.
        self._left_out: dict[str, frozenset[int]] = {}

    def after_schedule(self, output: Any, *, keep: bool) -> None:
        """Record the media that the new requests of the step just scheduled are sent without; with *keep* all are sent."""
        if self._resends_inputs:
            return
        for new in output.scheduled_new_reqs:
            request = self._scheduler.requests.get(new.req_id)
            if request is None or not request.mm_features:
                continue
            if keep:
                new.mm_features = request.mm_features
            # What vLLM leaves something out of is another object.
            pairs = enumerate(zip(request.mm_features, new.mm_features, strict=True))
            left_out = frozenset(index for index, (own, given) in pairs if given is not own)
            if left_out:
                self._left_out[new.req_id] = left_out
            else:
                self._left_out.pop(new.req_id, None)

    def lacking(self, request: Any, indexes: Iterable[int]) -> tuple[int, ...]:
        """Return those *indexes* of a request's inputs that the workers could not encode if they were to do so now."""
        left_out = self._left_out.get(request.request_id)
        # One that waits for the first time, or for the next part of a session, is sent with this step.
        if left_out is None or request.status.name == _WAITING:
            return ()
        return tuple(index for index in indexes if index in left_out)

    def missing_beyond(self, request: Any, computed: int) -> bool:
        """Return whether the workers lack media that a request needs once it goes back to *computed* tokens."""
        positions = (
            request.mm_features[index].mm_position for index in self._left_out.get(request.request_id, ())
        )
        return any(position.offset + position.length > computed for position in positions)

    def on_finished(self, request_id: str) -> None:
        """Forget a request that has finished."""
        self._left_out.pop(request_id, None)
