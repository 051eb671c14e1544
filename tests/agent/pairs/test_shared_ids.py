"""Engines with one connector engine id: which they are, which pair is whose, and what is not accused."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.pairs import add_status, list_pairs, shared_ids
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import (
    ADDRESS_OWNER_OTHER,
    ADDRESS_OWNER_UNSPECIFIED,
    ROLE_DECODE,
    ROLE_PREFILL,
)
from penstock.proto.v1.events_pb2 import QUARANTINE_STATE_OPEN
from penstock.proto.v1.snapshot_pb2 import PeerStatus

_FIXED = "fixed-by-the-manifest"


def _engine(name: str, role: int = ROLE_PREFILL, **fields: Any) -> admin.PairEngine:
    facts = {
        "kv_connector": "NixlConnector",
        "kv_engine_id": _FIXED,
        "side_channel": f"{name}:5600",
        "start_time_unix_nano": 5,
        "compatibility_hash": "h",
        "transfer_mode": "pull",
        **fields.pop("facts", {}),
    }
    return admin.PairEngine(key={"server": name, "engine": "0"}, role=role, facts=facts, **fields)  # type: ignore[arg-type]


def _shared(*engines: admin.PairEngine) -> list[tuple[str, list[str], bool]]:
    found = shared_ids((each.key, each.role, each.facts) for each in engines)
    return [(each.engine_id, [key.server for key in each.keys], each.is_read) for each in found]


def _met(address: str, **fields: Any) -> Any:
    return {"status": {"peer": {"address": address, "engine_id": _FIXED}, "connected": True, **fields}}


def test_two_engines_with_one_id() -> None:
    """Both are named, whichever comes first."""
    assert _shared(_engine("q"), _engine("p")) == [(_FIXED, ["p", "q"], True)]


def test_nixl_may_be_one_of_several_connectors() -> None:
    """It keeps its peers by the engine's id all the same."""
    both = [_engine(name, facts={"kv_connector": "MultiConnector"}) for name in "pq"]
    assert _shared(*both) == [(_FIXED, ["p", "q"], True)]


def test_a_reader_with_the_id_of_its_source() -> None:
    """Its loads fail, as vLLM registers no peer under its own id."""
    assert _shared(_engine("p"), _engine("d", ROLE_DECODE)) == [(_FIXED, ["d", "p"], True)]


@pytest.mark.parametrize(("mode", "is_read"), [("pull", False), ("push", True)])
def test_decode_engines_are_read_by_nobody(mode: str, is_read: bool) -> None:
    """But they are written to."""
    decodes = [_engine(name, ROLE_DECODE, facts={"transfer_mode": mode}) for name in "ab"]
    assert _shared(*decodes) == [(_FIXED, ["a", "b"], is_read)]


@pytest.mark.parametrize(
    "facts",
    [
        {"kv_engine_id": ""},
        {"kv_engine_id": f"{_FIXED}_dp1", "side_channel": "p:5601"},
        {"kv_connector": "OffloadingConnector", "transfer_mode": ""},
        {"kv_connector": "MultiConnector", "transfer_mode": ""},
        # One engine by two addresses of its agent.
        {"side_channel": "p:5600"},
    ],
)
def test_what_is_ordinary(facts: dict[str, Any]) -> None:
    """No id, ranks of one server, a connector that keeps no peers by ids, an engine that is listed twice."""
    assert _shared(_engine("p"), _engine("q", facts=facts)) == []


def test_engines_that_advertise_localhost_too() -> None:
    """They began at two moments: they are two."""
    local = {"side_channel": "localhost:5600"}
    assert _shared(_engine("p", facts=local), _engine("q", facts={**local, "start_time_unix_nano": 6})) == [
        (_FIXED, ["p", "q"], True)
    ]


def test_an_address_is_one_engines() -> None:
    """The id alone would give it to either; the other one is a pair by its role, which was not met."""
    decode = _engine("d", ROLE_DECODE, facts={"kv_engine_id": "own"}, peers=[_met("p:5600")])
    for prefill in ([_engine("p"), _engine("q")], [_engine("q"), _engine("p")]):
        found = list_pairs([decode, *prefill]).pairs
        assert {(pair.peer_key.server, pair.peer.address, pair.connected) for pair in found} == {
            ("p", "p:5600", True),
            ("q", "", False),
        }
        assert {tuple(key.server for key in pair.same_id) for pair in found} == {("p", "q")}
        assert all(pair.reason.startswith("one connector engine id: p/0 and q/0; ") for pair in found)


def test_an_address_that_tells_nothing() -> None:
    """It is neither one's: nobody says which."""
    decode = _engine("d", ROLE_DECODE, facts={"kv_engine_id": "own"}, peers=[_met("proxy:1")])
    found = list_pairs([decode, _engine("p"), _engine("q")]).pairs
    (pair,) = [each for each in found if each.peer.address]
    assert not pair.HasField("peer_key")
    assert pair.reason.startswith("not known which of p/0 and q/0: they have one connector engine id; ")


def test_addresses_that_requests_name() -> None:
    """Of an engine that no agent here knows, requests tell it."""
    others = [
        {"address": "q:5600", "owner": ADDRESS_OWNER_OTHER, "transfers": 2},
        {"address": "r:5600", "owner": ADDRESS_OWNER_UNSPECIFIED},
    ]
    decode = _engine(
        "d", ROLE_DECODE, facts={"kv_engine_id": "own"}, peers=[_met("p:5600", other_addresses=others)]
    )
    for engines in ([decode], [decode, _engine("p")]):
        (pair,) = list_pairs(engines).pairs
        assert [each.address for each in pair.other_addresses] == ["q:5600", "r:5600"]
        assert "requests name q:5600 (another engine's) for its id, too" in pair.reason
        assert "requests name r:5600 (not known whose) for its id, too" in pair.reason


def test_what_several_ranks_say_of_an_address() -> None:
    """One rank has asked who is there; each counts its own part of every load."""

    def status(owner: int, transfers: int, first: int) -> PeerStatus:
        other = {"address": "q:5600", "owner": owner, "transfers": transfers, "first_time_unix_nano": first}
        return PeerStatus(**_met("p:5600", other_addresses=[other])["status"])

    whole = PeerStatus()
    add_status(whole, status(ADDRESS_OWNER_UNSPECIFIED, 3, 7))
    add_status(whole, status(ADDRESS_OWNER_OTHER, 2, 5))
    (other,) = whole.other_addresses
    assert (other.owner, other.transfers, other.first_time_unix_nano) == (ADDRESS_OWNER_OTHER, 3, 5)


def test_an_engine_that_was_at_an_address_before() -> None:
    """What is left of it does not rename the one that is connected there."""
    whole = PeerStatus()
    add_status(whole, PeerStatus(peer={"address": "p:5600", "engine_id": "new"}, connected=True))
    add_status(whole, PeerStatus(peer={"address": "p:5600", "engine_id": "old"}, handshake_error_text="gone"))
    add_status(whole, PeerStatus(peer={"address": "p:5600"}, quarantine=QUARANTINE_STATE_OPEN))
    assert (whole.peer.engine_id, whole.handshake_error_text, whole.quarantine) == ("new", "", 2)
