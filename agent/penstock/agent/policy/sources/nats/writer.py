"""Writes policies to a bucket with compare-and-set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from penstock.agent.errors import ConflictError, NotFoundError

if TYPE_CHECKING:
    from nats.js.kv import KeyValue
    from penstock.agent.policy.manifest import Manifest


async def put_policy(bucket: KeyValue, manifest: Manifest, if_revision: int) -> int:
    """Write *manifest* if its key is at *if_revision*, 0 for "not there"; return the new revision.

    Raises:
        ConflictError: the key is at another revision.

    """
    value = manifest.canonical.encode()
    try:
        if not if_revision:
            revision: int = await bucket.create(manifest.name, value)
        else:
            revision = await bucket.update(manifest.name, value, last=if_revision)
    except KeyWrongLastSequenceError:
        raise _conflict(manifest.name, if_revision) from None
    return revision


async def delete_policy(bucket: KeyValue, name: str, if_revision: int) -> None:
    """Delete the policy *name* if its key is at *if_revision*; its history stays in the bucket.

    Raises:
        ConflictError: the key is at another revision.
        NotFoundError: there is no such key.

    """
    try:
        entry = await bucket.get(name)
    except KeyNotFoundError:
        raise NotFoundError(f"policy {name!r} is not in the bucket") from None
    if entry.revision != if_revision:
        raise _conflict(name, if_revision)
    try:
        await bucket.delete(name, last=if_revision)
    except Exception as error:
        # The client maps this error for writes, not for deletions.
        if getattr(error, "err_code", 0) in _WRONG_REVISION:
            raise _conflict(name, if_revision) from None
        raise


_WRONG_REVISION = (10071, 10164)


def _conflict(name: str, revision: int) -> ConflictError:
    where = f"at revision {revision}" if revision else "absent"
    return ConflictError(f"policy {name!r} is not {where} in the bucket; read it again and retry")
