"""What a record derives from a request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming.peers import TEXT_MAX, Peer
from penstock.instrumentation.vllm.requests.record import RequestRecord, capture, external_id


@pytest.mark.parametrize(
    ("request_id", "expected"),
    [
        ("cmpl-my-id-0-0badcafe", "cmpl-my-id-0"),
        ("chatcmpl-1234-12345678", "chatcmpl-1234"),
        ("without", "without"),
        ("b157cdd323990a3e", "b157cdd323990a3e"),
    ],
)
def test_external_id(request_id: str, expected: str) -> None:
    """The client's id is vLLM's without the random suffix."""
    assert external_id(request_id) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({"traceparent": "00-1-1-01", "x-request-id": "mine"}, "mine", id="dynamo"),
        pytest.param({"traceparent": "00-1-1-01"}, "", id="none"),
        pytest.param(None, "", id="no-headers"),
        pytest.param({"x-request-id": 7}, "", id="no-string"),
        pytest.param({"x-request-id": "x" * 100_000}, "x" * TEXT_MAX, id="cut"),
    ],
)
def test_the_clients_id_beside_the_trace_context(headers: dict[str, object] | None, expected: str) -> None:
    """A front end that makes ids of its own passes the client's as a header; it is a client's text."""
    request = SimpleNamespace(
        request_id="7b1d-0badcafe", kv_transfer_params=None, trace_headers=headers, arrival_time=1.0
    )
    assert capture(request).client_id == expected


_SOURCE = {"kv_request_id": "k", "remote_host": "h", "remote_port": 5710}
_FLAT = {"remote_host": "10.0.0.7", "remote_port": 5600, "remote_engine_id": "e"}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        pytest.param({"remote_prefiller": _SOURCE}, (c.ROLE_DECODE, Peer("h:5710"), True), id="prefiller"),
        pytest.param({"remote_kv_source": _SOURCE}, (c.ROLE_DECODE, Peer("h:5710"), True), id="source"),
        pytest.param({"remote_decoder": {"kv_request_id": "k"}}, (c.ROLE_PREFILL, None, True), id="decoder"),
        pytest.param(
            _FLAT | {"do_remote_prefill": True, "remote_kv_source": _SOURCE},
            (c.ROLE_DECODE, Peer("10.0.0.7:5600", "e"), False),
            id="another-connector-comes-first",
        ),
        pytest.param({"remote_decoder": "k"}, (c.ROLE_UNSPECIFIED, None, False), id="no-mapping"),
        pytest.param({}, (c.ROLE_UNSPECIFIED, None, False), id="neither"),
    ],
)
def test_role_and_peer_by_the_p2p_tier(
    params: dict[str, object], expected: tuple[int, Peer | None, bool]
) -> None:
    """They nest in its own parameters; those of another connector come first."""
    record = _captured(params)
    assert (record.kv_role, record.peer, record.by_tier) == expected


@pytest.mark.parametrize(
    ("params", "place", "origin"),
    [
        pytest.param({"remote_prefiller": _SOURCE}, "p2p", Peer("h:5710"), id="from-the-peer"),
        pytest.param({"remote_prefiller": _SOURCE}, "host", Peer("host"), id="from-memory"),
        pytest.param({"remote_prefiller": _SOURCE}, "", Peer("unknown"), id="a-mixture"),
        pytest.param({"remote_decoder": {}}, "p2p", Peer("unknown"), id="no-peer"),
        pytest.param(_FLAT, "", Peer("10.0.0.7:5600", "e"), id="another-connector"),
        pytest.param(_FLAT, "disk", Peer("disk"), id="its-disk"),
    ],
)
def test_origin_of_a_load(params: dict[str, object], place: str, origin: Peer) -> None:
    """A place of this machine is the other end; the request's peer only where KV is known to come from there."""
    assert _captured(params).origin(place) == origin


def test_a_miss_of_the_p2p_tier_is_no_load_that_did_not_begin() -> None:
    """What the source does not have is computed, and nothing is wrong with that."""
    record = _captured({"remote_prefiller": _SOURCE})
    record.first_token_ns = 1
    assert record.unloaded_tokens(SimpleNamespace(num_prompt_tokens=500), 32) == 0
    flat = _captured(_FLAT | {"do_remote_prefill": True})
    flat.first_token_ns = 1
    assert flat.unloaded_tokens(SimpleNamespace(num_prompt_tokens=500), 32) == 500


def _captured(params: dict[str, object]) -> RequestRecord:
    return capture(
        SimpleNamespace(request_id="r", kv_transfer_params=params, trace_headers=None, arrival_time=1.0)
    )
