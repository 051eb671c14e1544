"""Which media the workers were not given, so that nobody lets them encode those.

vLLM leaves out of a new request what lies in its computed prefix (``strip_covered_mm_data``), and its V1 runner is told nothing
new when a request goes back. To encode such an input ends the engine ("Encoder cache miss"). Its V2 runner is told all anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_WAITING: Final = "WAITING"


class WorkerEncoderInputs:
    """What the workers of one scheduler know of the inputs of its requests; on its thread."""

    def __init__(self, scheduler: Any) -> None:
        """Look at the requests of *scheduler*."""
        self._scheduler = scheduler
        self._told_anew = bool(getattr(scheduler, "use_v2_model_runner", False))
        # By request, the indexes of its inputs without media.
        self._left_out: dict[str, frozenset[int]] = {}

    def scheduled(self, output: Any, *, keep: bool) -> None:
        """Note what the new requests of the step that was just scheduled are told without; with *keep* that is nothing."""
        if self._told_anew:
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
        # One that waits for the first time, or for the next part of a session, is told with this step.
        if left_out is None or request.status.name == _WAITING:
            return ()
        return tuple(index for index in indexes if index in left_out)

    def lacks_behind(self, request: Any, computed: int) -> bool:
        """Tell whether the workers could not encode all that a request needs once it goes back to *computed* tokens."""
        positions = (
            request.mm_features[index].mm_position for index in self._left_out.get(request.request_id, ())
        )
        return any(position.offset + position.length > computed for position in positions)

    def left(self, request_id: str) -> None:
        """Forget a request that has finished."""
        self._left_out.pop(request_id, None)
