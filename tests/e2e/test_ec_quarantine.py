"""A sick encoder is left alone for a while, and its failures are rehearsed; ZmqECConnector on real engines."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c
from penstock.proto.v1 import events_pb2 as e

from demo.common.steps import until
from demo.ec.stack import start_ec_stack
from tests.support.agent.agent import short_directory
from tests.support.ec.bench import ask
from tests.support.ec.zmq_server import zmq_bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.ec.stack import EcStack
    from tests.support.ec.bench import Ask
    from tests.support.ec.zmq_server import ZmqBench

pytestmark = pytest.mark.engine

# The language model has one encoder, so all of its peers may be cut off.
_QUARANTINE = {"failures": 2, "window": "60s", "duration": "10m", "maxPeersPercent": 100}
_RECOMPUTE = {"action": "recompute"}
_PATIENTLY = ("--timeout", "60s")


@pytest.fixture(scope="module")
def stack() -> Iterator[EcStack]:
    """Run the demo's parts, with engines that allow faults."""
    with short_directory() as directory, ExitStack() as parts, pytest.MonkeyPatch.context() as patch:
        for variable in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
            patch.delenv(variable, raising=False)
        faults = {"PENSTOCK_ALLOW_FAULTS": "1"}
        yield start_ec_stack(directory, parts, lambda _: None, language_env=faults)


@pytest.fixture(scope="module")
def served(stack: EcStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZmqBench]:
    """Give the stack's language model."""
    with zmq_bench(stack, None, logs=tmp_path_factory.mktemp("ec-quarantine")) as bench:
        yield bench


@pytest.fixture
def ec(served: ZmqBench) -> Iterator[ZmqBench]:
    """Begin and end without a policy, and see that our code raised nothing."""
    served.forget()
    yield served
    served.forget()
    assert not served.guard_errors()


def _encoded(ec: ZmqBench, request: Ask) -> tuple[int, ...]:
    """Have the pictures of *request* encoded by the encoder; return what it comes to where nothing is moved."""
    (tokens,) = ec.alone(request)
    ec.encode(request)
    return tokens


def _changes(ec: ZmqBench) -> list[tuple[int, str]]:
    """Return the states that the encoder came to, and why."""
    return [
        (event.quarantine_changed.state, event.quarantine_changed.reason)
        for event in ec.events("quarantine_changed")
        if event.quarantine_changed.peer.address == ec.peer
    ]


def _cut_off(ec: ZmqBench) -> None:
    """See that a picture is encoded here without the encoder being asked for it, and with right tokens."""
    request = ask()
    expected = _encoded(ec, request)
    assert ec.send(request).tokens == expected
    decided = ec.outcome(request)
    assert (decided.channel, decided.outcome) == (c.CHANNEL_EC, c.OUTCOME_RECOMPUTED)
    assert (decided.decided_by, decided.peer.address) == (c.DECIDED_BY_QUARANTINE, ec.peer)
    for kind in ("transfer_failure", "deferral_start"):
        assert not ec.events(kind, request.name)
    assert ec.span_of(request.name, "penstock.request").attributes["penstock.decided_by"] == "quarantine"
    assert "the peer is in quarantine" in ec.ctl("explain", request.name)


def _is_loaded(ec: ZmqBench) -> bool:
    """Tell whether a picture comes from the encoder."""
    request = ask()
    expected = _encoded(ec, request)
    assert ec.send(request).tokens == expected
    ec.closed(request)
    return any(span.name == "ec.load" and span.status == "unset" for span in ec.spans_of(request.name))


@contextmanager
def _drill(ec: ZmqBench, mode: str, *options: str) -> Iterator[str]:
    """Rehearse a fault in all of the language model's attempts; yields the drill's id."""
    said = ec.ctl(
        *("inject-fault", "--selector", ec.selector, "--channel", "ec", "--mode", mode, "--rate", "1.0"),
        *("--ttl", "5m", *options, *_PATIENTLY),
    )
    identity = said.split()[1]
    try:
        yield identity
    finally:
        ec.ctl("drill", "stop", identity, *_PATIENTLY)


def test_a_dead_encoder_is_not_asked(ec: ZmqBench) -> None:
    """After two failed probes it is left alone; everything shows it; agentctl lets it in again."""
    until(partial(_is_loaded, ec), "The encoder is not used")
    ec.enforce(ecLoadFailure=_RECOMPUTE, peerQuarantine=_QUARANTINE)
    ec.link.take_down()
    try:

        def opened() -> bool:
            ec.send(ask(), max_tokens=1)
            return (e.QUARANTINE_STATE_OPEN, "failures") in _changes(ec)

        until(opened, "The encoder is not quarantined")
        _cut_off(ec)
        ec.wait_value(1, "penstock_peer_quarantine_state", peer=ec.peer, state="open")
        assert ec.peer in ec.ctl("quarantine", "list")
        assert "quarantined" in ec.ctl("get", "peers")
    finally:
        ec.link.bring_up()
    _cut_off(ec)
    ec.ctl("quarantine", "lift", ec.peer, "--selector", ec.selector, "--ttl", "1m", *_PATIENTLY)
    until(partial(_is_loaded, ec), "The encoder is not asked again")
    assert _changes(ec)[-1] == (e.QUARANTINE_STATE_CLOSED, "operator")


def test_an_order_under_fail_is_a_503(ec: ZmqBench) -> None:
    """An operator cuts the encoder off: its requests fail at once, with the reason, and may be sent elsewhere."""
    ec.enforce(ecLoadFailure={"action": "fail"})
    ec.ctl("quarantine", "add", ec.peer, "--selector", ec.selector, "--ttl", "5m", *_PATIENTLY)
    try:
        request = ask()
        ec.encode(request)
        answer = ec.send(request)
        assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
        assert f"peer {ec.peer}): the peer is quarantined" in answer.text
        assert ec.outcome(request).decided_by == c.DECIDED_BY_QUARANTINE
    finally:
        ec.ctl("quarantine", "lift", ec.peer, "--selector", ec.selector, "--ttl", "1s", *_PATIENTLY)


def test_a_rehearsed_transfer_cuts_off_and_a_probe_lets_in(ec: ZmqBench) -> None:
    """While the drill lasts probes fail; after it one success closes the circuit; all of it is marked."""
    ec.enforce(
        ecLoadFailure=_RECOMPUTE,
        peerQuarantine={**_QUARANTINE, "failures": 1, "duration": "1s"},
    )
    before = len(_changes(ec))
    with _drill(ec, "transfer", "--peer", ec.peer):

        def probed() -> bool:
            request = ask()
            expected = _encoded(ec, request)
            assert ec.send(request).tokens == expected
            return (e.QUARANTINE_STATE_OPEN, "probe_failed") in _changes(ec)[before:]

        until(probed, "No probe has failed")
    until(
        lambda: _is_loaded(ec) and (e.QUARANTINE_STATE_CLOSED, "probe_ok") in _changes(ec)[before:],
        "No probe lets the encoder in",
    )
    changes = ec.events("quarantine_changed")[before:]
    # An operator's order of the test before may end meanwhile.
    assert all(event.rehearsal for event in changes if event.quarantine_changed.reason != "operator")


@pytest.mark.parametrize("mode", ["probe", "transfer", "load"])
def test_a_drill(ec: ZmqBench, mode: str) -> None:
    """The request is served with right tokens; failure, and outcome where there is one, are marked."""
    ec.enforce(ecLoadFailure=_RECOMPUTE)
    until(partial(_is_loaded, ec), "The encoder is not used")
    with _drill(ec, mode):
        request = ask()
        expected = _encoded(ec, request)
        assert ec.send(request).tokens == expected
        ec.closed(request)
    # A worker's come from a process of its own.
    ec.event("transfer_failure", request.name)
    assert all(event.rehearsal for event in ec.events("transfer_failure", request.name))
    outcomes = ec.events("load_outcome", request.name)
    assert len(outcomes) == (0 if mode == "probe" else 1)
    assert all(event.rehearsal for event in outcomes)


def test_a_slow_encoder(ec: ZmqBench) -> None:
    """The request waits for its picture, and a deadline ends that wait; the outcome is marked."""
    until(partial(_is_loaded, ec), "The encoder is not used")
    ec.enforce(ecLoadFailure=_RECOMPUTE, deferral={"maxTransferWait": "1s", "onTimeout": "recompute"})
    with _drill(ec, "slow", "--delay", "15s"):
        request = ask()
        expected = _encoded(ec, request)
        assert ec.send(request).tokens == expected
        assert ec.outcome(request).decided_by == c.DECIDED_BY_DEADLINE
    (event,) = ec.events("load_outcome", request.name)
    assert event.rehearsal
