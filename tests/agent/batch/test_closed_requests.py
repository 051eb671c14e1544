"""The gates of a request, read from its end."""

from __future__ import annotations

from penstock.agent.batch import GATES, GateTimes, gate_times
from penstock.proto.v1.events_pb2 import Gates, RequestClosed


def test_each_gate_is_a_field_of_the_wire() -> None:
    """No gate of the wire is unknown to the agent."""
    assert {f"{gate}_nano" for gate in GATES} == {field.name for field in Gates.DESCRIPTOR.fields}


def test_an_engine_without_gates_has_none() -> None:
    """An older engine reports none: they are not known, which is not 0."""
    closing = RequestClosed(arrival_time_unix_nano=1, first_token_time_unix_nano=9)
    assert gate_times(closing) is None


def test_times_are_read_in_the_order_of_the_gates() -> None:
    """The order is that of the table, and the longest comes first where it is asked for."""
    closing = RequestClosed(
        first_token_time_unix_nano=9, gates=Gates(queue_nano=2, transfer_nano=5, own_prefill_nano=3)
    )
    times = gate_times(closing)
    assert times == GateTimes((2, 0, 0, 5, 0, 3, 0), first_token=True)
    assert times.total_nano == 10
    assert times.longest == "transfer"
    assert times.largest_first() == [("transfer", 5), ("own_prefill", 3), ("queue", 2)]


def test_without_a_first_token_the_sum_is_no_time_to_first_token() -> None:
    """A request that was aborted before has gates up to its end."""
    times = gate_times(RequestClosed(gates=Gates(peer_nano=7)))
    assert times is not None
    assert not times.first_token
    assert times.longest == "peer"


def test_a_request_that_took_no_time_has_no_longest_gate() -> None:
    """All gates are 0, but known."""
    times = gate_times(RequestClosed(gates=Gates()))
    assert times is not None
    assert times.longest == ""
    assert times.largest_first() == []
