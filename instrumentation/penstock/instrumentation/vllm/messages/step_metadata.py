"""The scheduler's orders for the workers: they travel with a step, as attributes of the connector's own metadata.

- ``penstock_cancel``: ``dict[str, WaitKind]``, the requests whose load is over a deadline, and over which; in every step until the load
  has ended.
- ``penstock_drills``: ``tuple[Drill, ...]``, the fault drills in force with the time they have left; only in the step after a change.
- ``penstock_digest``, ``penstock_verify``: ``tuple[DigestOrder, ...]`` and ``tuple[VerifyOrder, ...]``, of ``kv/integrity``: what is
  digested at the end of this step, and what is compared when its load has ended.
- ``penstock_telemetry``: ``Telemetry``, the policy's section in force; only in the step after a change.

All ranks get the same metadata, so they switch in one step. An attribute that is absent says that nothing has changed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.orders import NO_ORDERS
from penstock.rules import Telemetry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.instrumentation.orders import Orders
    from penstock.rules import Policy, WaitKind

_DRILLS: Final = "penstock_drills"
_TELEMETRY: Final = "penstock_telemetry"


class StepMetadata:
    """The orders of one scheduler.

    Attributes:
        cancel: requests whose load is to be ended, and what they have waited for; replaced, never changed.

    """

    def __init__(self) -> None:
        self.cancel: Mapping[str, WaitKind] = {}
        self._orders = NO_ORDERS
        self._telemetry = Telemetry()
        self._changed: set[str] = set()

    def on_policy_change(self, policy: Policy, orders: Orders) -> None:
        """Apply the policy and the orders that came into force."""
        telemetry = policy.telemetry or Telemetry()
        if telemetry != self._telemetry:
            self._changed.add(_TELEMETRY)
        if orders.drills or self._orders.drills:
            self._changed.add(_DRILLS)
        self._orders, self._telemetry = orders, telemetry

    def attach(self, metadata: Any, *, unseen: bool = False) -> None:
        """Put the orders on a step's *metadata* and on that of a MultiConnector's children; again in the next one if workers may not see it."""
        if not self._changed and not self.cancel:
            return
        attributes: dict[str, Any] = {}
        if self.cancel:
            attributes["penstock_cancel"] = self.cancel
        if _DRILLS in self._changed:
            attributes[_DRILLS] = self._orders.drills_at(time.monotonic_ns())
        if _TELEMETRY in self._changed:
            attributes[_TELEMETRY] = self._telemetry
        for each in with_children(metadata):
            for name, value in attributes.items():
                setattr(each, name, value)
        if not unseen:
            self._changed.clear()


def with_children(metadata: Any) -> list[Any]:
    """Return a step's connector metadata and, for a MultiConnector, that of its children."""
    children = getattr(metadata, "metadata", None)
    found = [metadata]
    if isinstance(children, tuple):
        for child in children:
            found.extend(with_children(child))
    return found
