"""What the scheduler tells the workers: it travels with a step, as attributes of the connector's own metadata.

- ``penstock_cancel``: ``frozenset[str]``, the requests whose load is over its deadline; in every step until the load has ended.
- ``penstock_drills``: ``tuple[Drill, ...]``, the fault drills in force with the time they have left; only in the step after a change.

All ranks get the same metadata, so they switch in one step. An attribute that is absent says that nothing has changed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.directives import NO_DIRECTIVES

if TYPE_CHECKING:
    from penstock.instrumentation.directives import Directives


class WorkerOrders:
    """The orders of one scheduler.

    Attributes:
        cancel: requests whose load is to be ended.

    """

    def __init__(self) -> None:
        self.cancel: frozenset[str] = frozenset()
        self._directives = NO_DIRECTIVES
        self._changed = False

    def follow(self, directives: Directives) -> None:
        """Take in what the policy feed has pushed."""
        if directives.drills or self._directives.drills:
            self._changed = True
        self._directives = directives

    def attach(self, metadata: Any) -> None:
        """Put the orders on a step's *metadata* and on that of a MultiConnector's children."""
        if not self._changed and not self.cancel:
            return
        drills = self._directives.drills_at(time.monotonic_ns())
        for each in with_children(metadata):
            if self.cancel:
                each.penstock_cancel = self.cancel
            if self._changed:
                each.penstock_drills = drills
        self._changed = False


def with_children(metadata: Any) -> list[Any]:
    """Return a step's connector metadata and, for a MultiConnector, that of its children."""
    children = getattr(metadata, "metadata", None)
    found = [metadata]
    if isinstance(children, tuple):
        for child in children:
            found.extend(with_children(child))
    return found
