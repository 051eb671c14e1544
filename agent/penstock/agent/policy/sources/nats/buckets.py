"""Opens buckets, and makes those that Penstock keeps for itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nats.js.errors import APIError, BucketNotFoundError

if TYPE_CHECKING:
    from nats.js.api import KeyValueConfig
    from nats.js.client import JetStreamContext
    from nats.js.kv import KeyValue

# Of a bucket in a cluster: one server may be lost.
_REPLICAS = 3
# The server's codes where it has too few others: it is none of a cluster, or they have no room.
_TOO_FEW = (10005, 10074)


async def open_or_create(stream: JetStreamContext, config: KeyValueConfig) -> KeyValue:
    """Open the bucket of *config*; create it if it is absent, with three replicas where there are so many servers.

    Raises:
        Error: the server refuses it.
        TimeoutError: the server does not answer.

    """
    try:
        return await stream.key_value(config.bucket)
    except BucketNotFoundError:
        try:
            return await stream.create_key_value(replace(config, replicas=_REPLICAS))
        except APIError as error:
            if error.err_code not in _TOO_FEW:
                raise
            return await stream.create_key_value(config)
