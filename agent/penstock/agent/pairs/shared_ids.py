"""Engines that have one connector engine id, and addresses that requests name for the id of another engine. Pure.

vLLM makes up an id for each engine unless ``kv_transfer_config.engine_id`` is set (of a data-parallel rank it adds the rank), and
its NIXL connectors keep peers by it: of several engines with one id, they read from the one that they met first, in the place of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.pairs.verdict import has_nixl
from penstock.proto.v1.common_pb2 import ROLE_DECODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.proto.v1.common_pb2 import EngineKey
    from penstock.proto.v1.snapshot_pb2 import EngineFacts, OtherAddress, PeerStatus


class SharedId(NamedTuple):
    """Several engines with one connector engine id.

    Attributes:
        engine_id: the id.
        keys: the engines.
        addresses: the side channels that they advertise, in their order; empty for an engine that tells none.
        is_read: whether one of them may be read from by others: a decode engine that is pulled from is not.

    """

    engine_id: str
    keys: tuple[EngineKey, ...]
    addresses: tuple[str, ...]
    is_read: bool


def shared_ids(engines: Iterable[tuple[EngineKey, int, EngineFacts]]) -> list[SharedId]:
    """Return the ids that several of *engines* have, each with its key, role and facts; all are connected.

    An engine that is listed twice, as by two addresses of one agent, is one: it began at one moment.
    """
    found: dict[str, dict[tuple[str, int], tuple[EngineKey, int, EngineFacts]]] = {}
    for key, role, facts in engines:
        if facts.kv_engine_id and has_nixl(facts):
            process = facts.side_channel, facts.start_time_unix_nano
            found.setdefault(facts.kv_engine_id, {}).setdefault(process, (key, role, facts))
    shared = []
    for engine_id, processes in sorted(found.items()):
        if len(processes) > 1:
            rows = sorted(processes.values(), key=lambda row: (row[0].server, row[0].engine))
            shared.append(
                SharedId(
                    engine_id,
                    tuple(key for key, _, _ in rows),
                    tuple(facts.side_channel for _, _, facts in rows),
                    any(role != ROLE_DECODE or facts.transfer_mode == "push" for _, role, facts in rows),
                )
            )
    return shared


def add_status(whole: PeerStatus, status: PeerStatus) -> None:
    """Add to *whole* what another process of the engine says of the peer at its address.

    What is said of an engine that was at the address before does not change what is said of the one that is connected.
    """
    if whole.connected and not status.connected and status.peer.engine_id not in ("", whole.peer.engine_id):
        return
    others = {each.address: each for each in merged([*whole.other_addresses, *status.other_addresses])}
    whole.MergeFrom(status)
    del whole.other_addresses[:]
    whole.other_addresses.extend(others.values())


def merged(others: Sequence[OtherAddress]) -> list[OtherAddress]:
    """Return what several ranks say of each address: of one rank's transfers the most, and what one of them knows."""
    found: dict[str, OtherAddress] = {}
    for each in others:
        known = found.setdefault(each.address, each)
        if known is not each:
            known.owner = known.owner or each.owner
            known.transfers = max(known.transfers, each.transfers)
            known.first_time_unix_nano = min(known.first_time_unix_nano, each.first_time_unix_nano)
    return list(found.values())
