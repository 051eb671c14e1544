"""TransferPolicy objects as policies. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_ANNOTATIONS = "penstock.dev/"
"""What the names of annotations begin with that are the manifest's."""
# As of each policy source.
_MAX_MANIFEST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ClusterObject:
    """One object.

    Attributes:
        manifest: what of the object is the manifest; empty if it is refused.
        revision: its resource version.
        refusal: why the manifest is not read; empty if it is.

    """

    manifest: dict[str, Any]
    revision: str
    refusal: str = ""

    def same_policy(self, other: ClusterObject | None) -> bool:
        """Return whether *other* differs in nothing but its revision."""
        return other is not None and (self.manifest, self.refusal) == (other.manifest, other.refusal)


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
        {key: text for key, text in given.items() if key.startswith(OWN_ANNOTATIONS)}
        if isinstance(given, dict)
        else {}
    )
    kept: dict[str, Any] = {"name": name, **({"annotations": own} if own else {})}
    manifest = {key: value[key] for key in ("apiVersion", "kind", "spec") if key in value}
    manifest["metadata"] = kept
    if len(json.dumps(manifest)) > _MAX_MANIFEST_BYTES:
        refusal = f"the manifest has more than {_MAX_MANIFEST_BYTES >> 10} KiB; make it shorter"
        return name, ClusterObject({}, resource_version(value), refusal)
    return name, ClusterObject(manifest, resource_version(value))


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
