"""All that one value of a policy source goes through until it is stored or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.policy.manifest import build_schedule, parse_manifest
from penstock.agent.policy.sources import SourceSet
from penstock.agent.policy.sources.nats.source import decode_item
from penstock.agent.policy.sources.source_sets import check_set, read_items

if TYPE_CHECKING:
    from datetime import datetime


def take(body: bytes, now: datetime) -> bool:
    """Take one value as the agent does; returns False if it is refused, or has expired."""
    item = decode_item(body, "1")
    checked = check_set(read_items(SourceSet({"p": item}), {}), "nats://a:1/p", (), now)
    for sentence in checked.refused.values():
        assert sentence
        sentence.encode()
    for policy in checked.policies.values():
        assert parse_manifest(policy.manifest.canonical).canonical == policy.manifest.canonical
        build_schedule(policy.manifest.versions, now)
    return bool(checked.policies)
