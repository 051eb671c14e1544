"""TransferPolicy objects as policies. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWN = "penstock.dev/"


@dataclass(frozen=True, slots=True)
class ClusterObject:
    """One object: what of it is the manifest, and its resource version."""

    manifest: dict[str, Any]
    revision: str


@dataclass(frozen=True, slots=True)
class ObjectSet:
    """All objects of the namespace by name, at one resource version."""

    objects: Mapping[str, ClusterObject] = field(default_factory=dict)
    revision: str = ""


def read_object(value: Any) -> tuple[str, ClusterObject]:
    """Return the name and the policy of an API object.

    Only annotations of Penstock's own are the manifest's: kubectl and controllers write others.

    Raises:
        ValueError: it is no object of the API.

    """
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise ValueError("an object has no name")  # noqa: TRY004  (the answer is wrong, not a caller)
    name = metadata["name"]
    given = metadata.get("annotations")
    own = (
        {key: text for key, text in given.items() if key.startswith(_OWN)} if isinstance(given, dict) else {}
    )
    kept: dict[str, Any] = {"name": name, **({"annotations": own} if own else {})}
    manifest = {key: value[key] for key in ("apiVersion", "kind", "spec") if key in value}
    return name, ClusterObject({**manifest, "metadata": kept}, resource_version(value))


def resource_version(value: Any) -> str:
    """Return the resource version of an object or a list.

    Raises:
        ValueError: it has none.

    """
    metadata = value.get("metadata") if isinstance(value, dict) else None
    found = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(found, str) or not found:
        raise ValueError("an answer has no resourceVersion")
    return found
