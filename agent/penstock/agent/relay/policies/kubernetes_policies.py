"""The TransferPolicy objects of a Kubernetes namespace.

A write replaces the object at the resource version that was read. Server-side apply leaves the fields of others as they are:
a policy that no longer has a field would keep it, if kubectl had written it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.agent.errors import ClusterError, ConflictError, ImpossibleError, NotFoundError
from penstock.agent.policy.kubernetes import OWN_ANNOTATIONS, ApiClient, ClusterAccess
from penstock.agent.relay.policies.fleet_policies import CheckedItems, FleetPolicy, FoundPolicies, Item

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.agent.policy.manifest import Manifest


class KubernetesPolicies:
    """The policies of *place*, a namespace.

    Attributes:
        access: to that namespace.

    """

    kind = "kubernetes"

    def __init__(self, name: str, access: ClusterAccess) -> None:
        """Read and write the objects that *access* reaches."""
        self.name = name
        self.place = access.namespace
        self.access = access
        self._checked = CheckedItems()

    async def read(self) -> FoundPolicies:
        """Return all policies."""
        async with self._client() as client:
            objects, _ = await client.list_objects()
        return await self._checked.check(
            {name: Item(found.manifest, found.refusal, found.revision) for name, found in objects.items()}
        )

    async def put(self, manifest: Manifest, if_revision: int | None = None) -> FleetPolicy:
        """Write *manifest*; see the interface."""
        async with self._client() as client:
            present = await client.read_object(manifest.name)
            _check(manifest.name, present, if_revision)
            written = await client.write_object(_with_manifest(present or {}, manifest))
            return FleetPolicy(manifest, _revision(written))

    async def delete(self, name: str, if_revision: int | None = None) -> None:
        """Delete the policy *name*; see the interface."""
        async with self._client() as client:
            present = await client.read_object(name)
            if present is None:
                raise NotFoundError(f"policy {name!r} is not in namespace {self.place}")
            _check(name, present, if_revision)
            await client.delete_object(name, str(_revision(present)))

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[ApiClient]:
        try:
            async with ApiClient(self.access) as client:
                yield client
        except ClusterError as error:
            raise ImpossibleError(f"policy source {self.name}: {error}") from error


def _check(name: str, present: dict[str, Any] | None, wanted: int | None) -> None:
    found = 0 if present is None else _revision(present)
    if wanted is not None and found != wanted:
        where = f"at generation {found}" if found else "absent"
        raise ConflictError(f"policy {name!r} is {where}, not at {wanted}; read it again and retry")


def _with_manifest(present: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Return the object with the content of *manifest*; what others keep in its metadata stays."""
    document = manifest.document()
    metadata = dict(present.get("metadata") or {})
    others = {
        key: text
        for key, text in (metadata.get("annotations") or {}).items()
        if not key.startswith(OWN_ANNOTATIONS)
    }
    metadata.pop("managedFields", None)
    metadata["name"] = manifest.name
    metadata["annotations"] = others | document["metadata"].get("annotations", {})
    return {**present, **document, "metadata": metadata}


def _revision(value: dict[str, Any]) -> int:
    try:
        return int(value["metadata"]["resourceVersion"])
    except (KeyError, TypeError, ValueError):
        raise ClusterError("an object of the API server has no resourceVersion that counts") from None
