"""The pure parts of the NIXL hook: which factor differs, whether a port is closed, how much is affected, who was in the way."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from penstock.instrumentation.vllm.nixl_compatibility import differing, versions_near
from penstock.instrumentation.vllm.nixl_handshakes import DELAY_NS, Handshakes, Run
from penstock.instrumentation.vllm.nixl_handshaking import clock_offset_ns
from penstock.instrumentation.vllm.nixl_reach import refuses
from penstock.instrumentation.vllm.nixl_sizes import bytes_of
from penstock.instrumentation.vllm.peers import Peer

from demo.processes import free_port
from tests.support.nixl_pair import HOST

FACTORS = {
    "dtype": "float16",
    "transfer_mode": "pull",
    "vllm_version": "0.32.0",
    "nixl_connector_version": 14,
}
ALTERNATIVES: dict[str, list[Any]] = {
    "dtype": ["bfloat16", "float32"],
    "transfer_mode": ["push"],
    "vllm_version": ["0.33.0"],
    "nixl_connector_version": [15],
}


def hash_of(factors: dict[str, Any]) -> str:
    """Return a readable stand-in of vLLM's hash."""
    return repr(sorted(factors.items()))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"dtype": "float32"}, ("dtype",)),
        ({"transfer_mode": "push"}, ("transfer_mode",)),
        ({"dtype": "bfloat16", "transfer_mode": "push"}, ("dtype", "transfer_mode")),
        (
            {"vllm_version": "0.33.0", "nixl_connector_version": 15},
            ("vllm_version", "nixl_connector_version"),
        ),
        ({"dtype": "int4"}, ()),
        ({"model": "another"}, ()),
    ],
    ids=str,
)
def test_differing_factors(changes: dict[str, Any], names: tuple[str, ...]) -> None:
    """What differs is found where its values are known, and not guessed where they are not."""
    assert differing(FACTORS, ALTERNATIVES, hash_of({**FACTORS, **changes}), hash_of) == names


@pytest.mark.parametrize(
    ("result", "took_ms", "offset_ms"),
    [
        (({}, 0.69), 1_400, 0),
        (({}, -0.69), 1_400, 0),
        (({}, 0.69), 1_300, 690),
        (({}, -86_400.0), 1_300, -86_400_000),
        (({}, 0.0), 0, 0),
        (({},), 0, None),
        (None, 0, None),
    ],
    ids=str,
)
def test_a_slow_handshake_tells_no_clock_offset(result: object, took_ms: int, offset_ms: int | None) -> None:
    """VLLM's estimate is wrong by half of the round trip at most; on one machine there is no offset."""
    found = clock_offset_ns(result, took_ms * 1_000_000)
    assert found == (None if offset_ms is None else offset_ms * 1_000_000)


def test_versions_near() -> None:
    """The releases that a fleet in the middle of an upgrade may run are tried; a development version has none."""
    assert {"0.31.0", "0.32.1", "0.33.0"} <= set(versions_near("0.32.0"))
    assert versions_near("dev") == []


def test_reach() -> None:
    """A closed port refuses; a port that takes connections and a name that does not exist do not."""
    with socket.create_server((HOST, 0)) as listener:
        assert not refuses(HOST, listener.getsockname()[1])
    assert refuses(HOST, free_port(), deadline=5.0)
    assert not refuses("no-such-host.invalid", 80)


@pytest.mark.parametrize(
    ("lengths", "group_of", "groups", "expected"),
    [
        ([100, 100], [0, 0], [[1, 2, 3]], 600),
        ([100, 10], [0, 1], [[1, 2], [3]], 210),
        ([100, 10], [0, -1], [[1, 2], [3]], 230),
        ([100], [], [[1], [2]], 200),
        ([100, 10], [0, 2], [[1], [2]], None),
        ([], [], [[1]], None),
        ([100], [0], [], 0),
    ],
    ids=str,
)
def test_bytes_of(
    lengths: list[int], group_of: list[int], groups: list[list[int]], expected: int | None
) -> None:
    """Bytes follow from the regions of each group; what does not fit is not known."""
    worker = SimpleNamespace(block_len_per_layer=lengths, region_group_ids=group_of)
    assert bytes_of(worker, groups) == expected


def test_bytes_of_a_state_space_model() -> None:
    """Pages of different kinds have no common size."""
    worker = SimpleNamespace(block_len_per_layer=[100], region_group_ids=[0], _has_mamba=True)
    assert bytes_of(worker, [[1]]) is None


def ran(
    handshakes: Handshakes, name: str, start_ns: int, end_ns: int, waiter: str = "", queued_ns: int = 0
) -> Any:
    """Let a handshake with the peer of that name run."""
    made = handshakes.join(Peer(f"{name}:1", name), waiter, object(), queued_ns)
    handshakes.ran(name, Run(start_ns, end_ns))
    return made


def test_who_was_in_the_way() -> None:
    """A wait is another peer's doing for as long as that peer's handshakes ran; the longest one is the cause."""
    handshakes, unit = Handshakes(), DELAY_NS
    short = ran(handshakes, "short", 0, unit)
    long = ran(handshakes, "long", unit, 10 * unit)
    mine = ran(handshakes, "mine", 11 * unit, 12 * unit, "early", 0)
    mine.joined("late", 11 * unit - unit // 2)
    (delay,) = handshakes.delays(mine, Run(11 * unit, 12 * unit))
    assert (delay.request_id, delay.delay_ns) == ("early", 10 * unit)
    assert (delay.caused_by, delay.handshake_id) == (long.peer, long.id)
    assert delay.handshake_id != short.id


def test_nobody_was_in_the_way() -> None:
    """An idle thread, and an earlier handshake of the same peer, delay nobody."""
    handshakes, unit = Handshakes(), DELAY_NS
    ran(handshakes, "mine", 0, 10 * unit)
    mine = ran(handshakes, "mine", 10 * unit, 11 * unit, "r1", 0)
    assert handshakes.delays(mine, Run(10 * unit, 11 * unit)) == []
