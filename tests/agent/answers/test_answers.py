"""What of an agent's answer is taken, and the sentence about what is not."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import example, given, settings
from hypothesis import strategies as st
from penstock.agent.answers import (
    bounds_of,
    contents,
    path_of,
    read,
    read_agents_answer,
    read_answer,
)
from penstock.agent.errors import ContractError
from penstock.agent.ingest.admission import MAX_ENGINES
from penstock.agent.pairs import MAX_PAIRS, list_pairs
from penstock.agent.parsing import yaml_documents
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

from tests.support.fleet.hostile_agent import METHODS

# A list of a message is field 1, an empty entry of it has two bytes.
EMPTY = b"\x0a\x00"
NEVER = 2**62


def of_time(seconds: int, nanos: int = 0) -> bytes:
    """Return a status with this clock."""
    return admin.AgentStatus(now={"seconds": seconds, "nanos": nanos}).SerializeToString()


def of_wait(seconds: int, nanos: int = 0) -> bytes:
    """Return a list of one request that waited so long."""
    request = admin.RequestSummary(wait={"seconds": seconds, "nanos": nanos})
    return admin.ListRequestsResponse(requests=[request]).SerializeToString()


def long_name() -> bytes:
    """Return pairs of which one engine has a name without end."""
    engine = admin.PairEngine(key={"engine": "x" * 100_000})
    return admin.ListPairsResponse(engines=[engine]).SerializeToString()


REFUSED = (
    ("ListEngines", b"\xff" * 64, "it is no penstock.v1.ListEnginesResponse"),
    ("ListEngines", b"\x0a\x03\x0a\x01\xff", "it is no penstock.v1.ListEnginesResponse"),
    ("ListEngines", EMPTY * 513, "it has 513 engines, at most 512 are taken"),
    ("ListEvents", EMPTY * 65_537, "it has 65537 events, at most 65536 are taken"),
    ("ListEvents", EMPTY * 1_000_000, "the message holds more than 262144 entries"),
    ("ListPairs", long_name(), "the message has a text of 100000 bytes, at most 16384 are taken"),
    ("WatchEvents", b"\x0a\x00" * (1 << 20), "it has 2097152 bytes, at most 1114112 are taken"),
    ("GetStatus", of_time(NEVER), f"its now of {NEVER} s and 0 ns is no time between 1678 and 2554"),
    ("GetStatus", of_time(-62_135_596_800), "its now of -62135596800 s and 0 ns is no time"),
    ("GetStatus", of_time(5, -1), "its now of 5 s and -1 ns is no time"),
    ("GetStatus", of_time(5, 10**9), "its now of 5 s and 1000000000 ns is no time"),
    ("ListRequests", of_wait(NEVER), f"its wait of {NEVER} s"),
    ("ListRequests", of_wait(5, -1), "its wait of 5 s and -1 ns"),
)


@pytest.mark.parametrize(("method", "body", "sentence"), REFUSED)
def test_what_is_refused(method: str, body: bytes, sentence: str) -> None:
    """One sentence names the method, what is wrong, and the bound."""
    with pytest.raises(ContractError, match=f"^its answer to {method} cannot be used: {sentence}") as refusal:
        read_agents_answer(method, body)
    assert "\n" not in str(refusal.value)


def of_policy(manifest: str) -> bytes:
    """Return a list of one policy."""
    return admin.ListPoliciesResponse(policies=[admin.Policy(manifest_json=manifest)]).SerializeToString()


def of_share(share: float) -> bytes:
    """Return holders of this share of the blocks."""
    holder = admin.HolderSummary(share=share)
    return admin.ListHoldersResponse(holders=[holder]).SerializeToString()


CONTENTS = (
    ("ListHolders", of_share(math.nan), "its share is nan"),
    ("ListHolders", of_share(-math.inf), "its share is -inf"),
    ("ListPolicies", of_policy(""), "its manifest_json is no JSON"),
    ("ListPolicies", of_policy("[]"), "its manifest_json is no object"),
    ("ListPolicies", of_policy("{}"), "its manifest_json is no manifest: manifest is not"),
    (
        "ListPolicies",
        of_policy('{"metadata":{},"spec":[]}'),
        "its manifest_json is no manifest: manifest.spec is",
    ),
    (
        "ListPolicies",
        of_policy('{"a":' * 33 + "1" + "}" * 33),
        "its manifest_json is more than 32 levels deep",
    ),
    ("ListPolicies", of_policy('{"a":"\\ud800"}'), "its manifest_json has half of a character"),
    ("ListPolicies", of_policy('{"a":1e999}'), "its manifest_json has a number that is none"),
    ("ExportPolicies", b"", "its manifests_json is no JSON"),
)


@pytest.mark.parametrize(("method", "body", "sentence"), CONTENTS)
def test_what_cannot_be(method: str, body: bytes, sentence: str) -> None:
    """Numbers and documents are checked for a relay and for people's commands."""
    for read_it in (read_answer, read_agents_answer):
        with pytest.raises(ContractError, match=f"^its answer to {method} cannot be used: {sentence}"):
            read_it(method, body)


def test_what_an_engine_measures_may_be_anything() -> None:
    """Its agent passes it on, and so does a relay: one engine's word makes nobody's log unreadable."""
    event = events.Event(eplb_rebalance={"balancedness_before": math.nan})
    told = admin.ListEventsResponse(events=[admin.LoggedEvent(event=event)]).SerializeToString()
    assert read_answer("ListEvents", told).events


def test_a_manifest_of_a_newer_version_is_taken() -> None:
    """Fields that nobody here reads may be anything; a document is as deep as a file of policies."""
    newer = '{"kind":"New","metadata":{"name":"p","labels":[1]},"spec":{"later":{"a":[]},"rollout":{"percent":5}}}'
    assert read_answer("ListPolicies", of_policy(newer)).policies
    assert contents.MAX_DEPTH == yaml_documents.MAX_DEPTH


TAKEN = (
    ("GetStatus", of_time(0)),
    ("GetStatus", of_time(9_000_000_000, 999_999_999)),
    ("ListRequests", of_wait(-5, -1)),
    ("ListEngines", EMPTY * 512),
    ("ListEvents", EMPTY * 65_536),
)


@pytest.mark.parametrize(("method", "body"), TAKEN)
def test_what_is_taken(method: str, body: bytes) -> None:
    """The edges of the bounds; an answer that is taken is the one that was sent."""
    assert read_agents_answer(method, body).SerializeToString() == body


def test_as_many_pairs_as_an_agent_tells_are_taken() -> None:
    """Those of 256 engines, which is as many as it knows."""
    engines = [
        admin.PairEngine(
            key={"server": f"server-{index}"},
            role=(common.ROLE_PREFILL, common.ROLE_DECODE)[index % 2],
            facts={"model": "tiny", "kv_connector": "NixlConnector", "kv_engine_id": str(index)},
        )
        for index in range(MAX_ENGINES)
    ]
    told = list_pairs(engines)
    assert len(told.pairs) == MAX_PAIRS
    assert read_agents_answer("ListPairs", told.SerializeToString()) == told


def test_a_relay_may_answer_with_more_than_an_agent() -> None:
    """Only what it is, and its times, are checked for people's commands."""
    assert len(read_answer("ListEngines", EMPTY * 1_000).engines) == 1_000
    for body in (b"\xff" * 64, admin.AgentStatus(now={"seconds": NEVER}).SerializeToString()):
        with pytest.raises(ContractError):
            read_answer("GetStatus", body)


def test_each_method_has_its_path_and_bounds() -> None:
    """A bound is of a method that there is; no map holds a time, which the check would not see."""
    assert set(read._BOUNDS) <= set(METHODS)
    for method in METHODS:
        assert path_of(method) == f"/penstock.v1.Admin/{method}"
        assert bounds_of(method).size <= 16 << 20
        _assert_no_time_in_a_map(METHODS[method].output_type, set())


def _assert_no_time_in_a_map(descriptor: Any, seen: set[str]) -> None:
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        if field.message_type is not None:
            assert not (field.message_type.GetOptions().map_entry and contents.ways_of(field.message_type))
            _assert_no_time_in_a_map(field.message_type, seen)


@settings(deadline=None)
@given(st.sampled_from(sorted(METHODS)), st.binary(max_size=400))
@example("GetStatus", b"\x12\x02\x08\x80")
def test_any_bytes_are_a_response_or_refused(method: str, body: bytes) -> None:
    """Nothing but a ContractError comes out; what is read can be sent on."""
    with suppress(ContractError):
        found = read_agents_answer(method, body)
        assert isinstance(found, GetMessageClass(METHODS[method].output_type))
        found.SerializeToString()
