"""The scheduler's side of verified encoder outputs: which items are compared with their producer's checksum, and what was found.

The checksum comes with the item; the workers get it with the step that loads the item, and compare what the step is about to compute
with. Without ``integrity`` in the policy nothing of it happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.ec.protocol import EcChecksums
from penstock.rules import integrity_rule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.vllm.ec.protocol import ExternalItem
    from penstock.instrumentation.vllm.messages import CheckedItem
    from penstock.instrumentation.vllm.requests import SchedulerObserver
    from penstock.rules import IntegrityRule, Policy

_UNKNOWN: Final = "the connector knows no checksum of the item"
_TOO_MUCH: Final = "too much was to be compared in one step"
_NO_REPORT: Final = "the workers reported no comparison"


@dataclass(slots=True)
class _Items:
    """Items that one request has loaded from one peer; *unknown*: those without a checksum; *skipped*: for lack of time."""

    transferred: int = 0
    compared: int = 0
    mismatched: int = 0
    unknown: int = 0
    skipped: int = 0


class EcVerifier:
    """The verification of one scheduler's encoder outputs; on its thread, inside a guard. Each request's end removes what is kept of it.

    Attributes:
        enforces: an item that differs is a failed load, else it is only reported.

    """

    def __init__(self, connector: Any, observer: SchedulerObserver) -> None:
        """Verify the items of *connector*; results go to the requests' records at *observer*."""
        self._checksums: EcChecksums | None = connector if isinstance(connector, EcChecksums) else None
        self._observer = observer
        self._rule: IntegrityRule | None = None
        self.enforces = False
        # Of the items whose comparison is under way: the request, and what is counted for it.
        self._asked: dict[str, tuple[str, _Items]] = {}
        self._found: dict[str, dict[str, _Items]] = {}  # by request, then by the peer's address

    def on_policy_change(self, policy: Policy) -> None:
        """Apply the policy that came into force."""
        self._rule = integrity_rule(policy)
        self.enforces = self._rule is not None and self._rule.enforce

    def orders(self, items: Iterable[ExternalItem]) -> dict[str, int | bytes]:
        """Return the checksums of those of a step's *items* that are verified."""
        checksums: dict[str, int | bytes] = {}
        if self._rule is None or self._checksums is None:
            return checksums
        for each in items:
            if not self._rule.samples(each.request_id):
                continue
            counts = self._found.setdefault(each.request_id, {}).setdefault(each.peer, _Items())
            counts.transferred += 1
            checksum = self._checksums.checksum(each.item)
            if checksum is None:
                counts.unknown += 1
            else:
                checksums[each.item] = checksum
                self._asked[each.item] = (each.request_id, counts)
        return checksums

    def on_checked(self, checked: Iterable[CheckedItem]) -> None:
        """Take what the ranks have compared in a step; an item differs if it does on one of them, and is skipped if it is on all."""
        found: dict[str, list[CheckedItem]] = {}
        for each in checked:
            found.setdefault(each.item, []).append(each)
        for item, ranks in found.items():
            _, counts = self._asked.pop(item, ("", None))
            if counts is None:
                continue
            if all(each.skipped for each in ranks):
                counts.skipped += 1
            else:
                counts.compared += 1
                counts.mismatched += any(each.mismatched for each in ranks)

    def on_finished(self, request_id: str) -> None:
        """Forget a request that has finished, and put what was found into its record."""
        found = self._found.pop(request_id, None)
        if found is None:
            return
        for item in [each for each, (asker, _) in self._asked.items() if asker == request_id]:
            del self._asked[item]
        record = self._observer.record(request_id)
        if record is not None:
            record.verifications = [_fields(counts, peer) for peer, counts in found.items()]


def _fields(counts: _Items, peer: str) -> dict[str, Any]:
    """Return the fields of ``Verification`` of what a request has loaded from one peer."""
    unverified = counts.transferred - counts.compared
    fields: dict[str, Any] = {
        "channel": c.CHANNEL_EC,
        "compared": counts.compared,
        "transferred": counts.transferred,
        "ok": counts.compared - counts.mismatched,
        "mismatch": counts.mismatched,
        "unverified": unverified,
    }
    if unverified:
        fields["reason"] = _UNKNOWN if counts.unknown else _TOO_MUCH if counts.skipped else _NO_REPORT
    if peer:
        fields["peer"] = {"address": peer}
    return fields
