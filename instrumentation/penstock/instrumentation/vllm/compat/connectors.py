"""How a KV connector tells its results and its children.

Until 0.29: a ``MultiConnector`` has no ``sub_connectors``; it keeps them under a private name (:func:`child_connectors`).
Until 0.29: a worker's results come from ``get_finished``; a newer vLLM asks ``get_transfer_results``
(:class:`TransferResults`, :class:`ConnectorTransferResults`).
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.instrumentation.vllm.compat.difference import Difference

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Results:
    """What has ended in a step, as vLLM's ``KVConnectorTransferResults``.

    Attributes:
        finished_sending: ids of requests.
        finished_recving: the same.
        failed_recving: of these, those that failed: what Penstock adds; vLLM tells them by their blocks.

    """

    finished_sending: set[str]
    finished_recving: set[str]
    failed_recving: set[str] = field(default_factory=set)


def _over(root: type) -> Any:
    """Return the mixin for classes whose root is *root*: a swap needs layouts that agree."""

    class TransferResults(root):  # type: ignore[misc]
        """Answers ``get_finished`` by way of ``get_transfer_results``, which Penstock's mixin extends."""

        @classmethod
        def is_needed(cls, owner: type) -> bool:
            """Return whether *owner* has no such method."""
            return not hasattr(owner, "get_transfer_results")

        def get_transfer_results(self, *args: Any, **kwargs: Any) -> Any:
            """Return the results of vLLM's ``get_finished``."""
            upstream: Any = super()
            sending, recving = upstream.get_finished(*args, **kwargs)
            return Results(sending or set(), recving or set())

        def get_finished(self, *args: Any, **kwargs: Any) -> Any:
            """Return what vLLM asks for, with Penstock's mixin in between."""
            results = self.get_transfer_results(*args, **kwargs)
            return results.finished_sending, results.finished_recving

    return TransferResults


TransferResults: Final[Any] = _over(Difference)
"""Over a NIXL worker, whose method takes nothing."""

ConnectorTransferResults: Final[Any] = _over(ABC)
"""Over a connector, whose method takes the finished requests."""


def child_connectors(connector: Any) -> Sequence[Any]:
    """Return the connectors that a connector passes its calls on to; none for most."""
    children = getattr(connector, "sub_connectors", None)
    if children is None:
        children = getattr(connector, "_connectors", None)
    return children if isinstance(children, (list, tuple)) else ()
