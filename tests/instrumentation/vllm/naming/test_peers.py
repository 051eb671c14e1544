"""Peers of vLLM, by what a request or a client names."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.instrumentation.vllm.naming import peers
from penstock.instrumentation.vllm.naming.peers import Peer


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("10.0.0.7", 5600, "10.0.0.7:5600"),
        ("prefill-0.svc", "5600", "prefill-0.svc:5600"),
        ("fd00::7", 5600, "[fd00::7]:5600"),
        ("[fd00::7]", 5600, "[fd00::7]:5600"),
        ("", 5600, "unknown"),
        (None, None, "unknown"),
        ("", 0, "unknown"),
    ],
)
def test_address(host: Any, port: Any, expected: str) -> None:
    """A peer goes by host and port, or is unknown."""
    assert peers.address(host, port) == expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, None),
        ({}, None),
        ({"do_remote_decode": True, "remote_host": None, "remote_engine_id": None}, None),
        ({"remote_engine_id": "e"}, Peer("unknown", "e")),
        ({"remote_host": "h", "remote_port": 1, "remote_engine_id": "e"}, Peer("h:1", "e")),
        ({"remote_bootstrap_addr": "http://h:8998", "remote_engine_id": "e"}, Peer("h:8998", "e")),
        ({"remote_bootstrap_addr": "http://[fd00::7]:8998/"}, Peer("[fd00::7]:8998")),
        ({"remote_bootstrap_addr": "8998", "remote_engine_id": "e"}, Peer("unknown", "e")),
        ({"remote_bootstrap_addr": {"host": "h"}}, None),
    ],
)
def test_peer_of_a_request(params: dict[str, Any] | None, expected: Peer | None) -> None:
    """A request's peer is in its kv_transfer_params."""
    assert peers.from_params(params) == expected


_SOURCE = {"kv_request_id": "k", "remote_host": "h", "remote_port": 5710}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, None),
        ([], None),
        ({}, None),
        ({"remote_prefiller": _SOURCE}, Peer("h:5710")),
        ({"remote_kv_source": _SOURCE | {"remote_engine_id": "e"}}, Peer("h:5710", "e")),
        ({"remote_prefiller": _SOURCE, "remote_kv_source": _SOURCE | {"remote_host": "i"}}, Peer("h:5710")),
        ({"remote_prefiller": None, "remote_kv_source": _SOURCE}, Peer("h:5710")),
        ({"remote_prefiller": {}, "remote_kv_source": _SOURCE}, None),
        ({"remote_prefiller": _SOURCE | {"kv_request_id": ""}}, None),
        ({"remote_prefiller": _SOURCE | {"remote_host": ["h"]}}, None),
        ({"remote_decoder": _SOURCE}, None),
    ],
)
def test_source_of_the_p2p_tier(params: Any, expected: Peer | None) -> None:
    """It nests; the tier looks at the first of two, and ignores one without an address or an id, and so do we."""
    assert peers.of_tier(params) == expected


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("10.0.0.7", "5600", "10.0.0.7:5600"),
        ("prefill_1.ns.svc", 5600, "prefill_1.ns.svc:5600"),
        ("h" * 254, 5600, "unknown"),
        ("two words", 5600, "unknown"),
        ("line\nbreak", 5600, "unknown"),
        (["10.0.0.7"], 5600, "unknown"),
        ("10.0.0.7", {"a": 1}, "unknown"),
        ("10.0.0.7", "9" * 5_000, "unknown"),
        ("10.0.0.7", 65_536, "unknown"),
        ("10.0.0.7", -1, "unknown"),
    ],
)
def test_a_clients_words_are_an_address_or_nothing(host: Any, port: Any, address: str) -> None:
    """What cannot be an address is no label; ids that are none are empty, long ones are cut."""
    assert peers.named(host, port, ["e"]) == Peer(address)
    assert peers.named(host, port, "e" * 5_000_000).engine_id == "e" * peers.TEXT_MAX
