"""Until 0.29: a ``MultiConnector`` has no ``sub_connectors``; it keeps them under a private name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def child_connectors(connector: Any) -> Sequence[Any]:
    """Return the connectors that a connector passes its calls on to; none for most."""
    children = getattr(connector, "sub_connectors", None)
    if children is None:
        children = getattr(connector, "_connectors", None)
    return children if isinstance(children, (list, tuple)) else ()
