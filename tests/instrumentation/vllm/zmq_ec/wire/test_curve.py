"""CURVE between a producer and a consumer, over real sockets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
import zmq
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.zmq_ec.wire import protocol
from penstock.instrumentation.vllm.zmq_ec.wire.curve import (
    ClientKeys,
    ServerKeys,
    load_client_keys,
    load_server_keys,
)

from tests.support.ec.keys import KeyFiles, consumer_files, make_keys, producer_files
from tests.support.ec.rig import MODEL, Notes, feature, publisher, request, rig, tensor, wait_for

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 3000  # two full chunks and a part of one
FAST = {"retries": 0, "missing_for": 0.01}


class Keys(NamedTuple):
    """A producer that allows *client*, and keys that it does not know."""

    producer: KeyFiles
    client: KeyFiles
    stranger: KeyFiles
    allowed: Path

    def server(self) -> ServerKeys:
        """Return the producer's."""
        found = load_server_keys(producer_files(self.producer, self.allowed))
        assert found is not None
        return found

    def consumer(self, own: KeyFiles, server: KeyFiles) -> ClientKeys:
        """Return those of a consumer."""
        found = load_client_keys(consumer_files(own, server))
        assert found is not None
        return found


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Make them; the list of clients is a directory with two."""
    client = make_keys(tmp_path, "client")
    allowed = tmp_path / "allowed"
    make_keys(allowed, "other")
    (allowed / "client.key").write_bytes(client.public.read_bytes())
    return Keys(make_keys(tmp_path, "producer"), client, make_keys(tmp_path, "stranger"), allowed)


@pytest.mark.parametrize("stranger", [False, True])
def test_who_gets_the_memory_on_the_same_host(keys: Keys, stranger: bool) -> None:
    """A consumer with an allowed key copies from it; another one does not learn where it is."""
    client = keys.stranger if stranger else keys.client
    with (
        publisher(keys=keys.server()) as producer,
        rig(
            producer.server.address, keys=keys.consumer(client, keys.producer), same_host=True, **FAST
        ) as consumer,
    ):
        counts = producer.server._responder.counts
        producer.save("a", tensor(4))
        consumer.wait(request("r", feature("a", 4)))
        assert consumer.consumer.has("a") is not stranger
        assert counts["area"] == (0 if stranger else 1)
        assert counts["chunk"] == 0


@pytest.mark.parametrize("one_file", [False, True])
def test_with_the_right_keys_items_arrive(keys: Keys, one_file: bool) -> None:
    """Whole chunks and the longest name fit into the frames, and the bytes are equal."""
    sent, name = tensor(ROWS), "x" * protocol.ITEM_MAX
    if one_file:
        keys = keys._replace(allowed=keys.client.public)
    with (
        publisher(keys=keys.server()) as producer,
        rig(
            producer.server.address, keys=keys.consumer(keys.client, keys.producer), region_bytes=32 << 20
        ) as consumer,
    ):
        producer.save(name, sent)
        consumer.wait(request("r", feature(name, ROWS)))
        assert torch.equal(consumer.load(name)[0], sent)
        assert not producer.server.counts


CASES = {
    "no key": (True, None, "curve_mismatch", c.ERROR_TYPE_INCOMPATIBLE, "set curve_key_file and curve_server_key_file"),
    "a key that is not allowed": (
        True, ("stranger", "producer"), "curve_denied", c.ERROR_TYPE_INCOMPATIBLE, "curve_allowed_clients",
    ),
    "another producer's key": (
        True, ("client", "stranger"), "curve_wrong_server_key", c.ERROR_TYPE_REMOTE_RESET, "another key than curve_server_key_file",
    ),
    "a producer without keys": (
        False, ("client", "producer"), "curve_mismatch", c.ERROR_TYPE_INCOMPATIBLE, "the producer has no keys",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_with_wrong_keys_nothing_is_served(keys: Keys, case: str, caplog: pytest.LogCaptureFixture) -> None:
    """The probe fails with a sentence, on both sides; the responder sees no request; the request encodes here."""
    served, given, reason, error_type, text = CASES[case]
    client = None if given is None else keys.consumer(getattr(keys, given[0]), getattr(keys, given[1]))
    with (
        publisher(keys=keys.server() if served else None) as producer,
        # One attempt, however late this thread looks: the miss is remembered.
        rig(producer.server.address, keys=client, **{**FAST, "missing_for": 60.0}) as consumer,
    ):
        producer.save("a", tensor(4))
        notes = Notes()
        consumer.consumer.observe(notes)
        asked = request("r", feature("a", 4))
        consumer.settle(asked)
        assert consumer.consumer.ensure(asked, 0)
        assert not consumer.consumer.has("a")
        (failure,) = notes.failures
        # Both compare the greetings. One that finds the mismatch first closes, and the other may see only that.
        first = reason == "curve_mismatch" and failure.error_type == error_type
        if not first:
            wait_for(lambda: producer.server.counts[reason])
        assert set(producer.server.counts) <= {reason}
        assert not producer.server._responder.counts
    assert failure.mode == c.FAILURE_MODE_PROBE
    if reason == "curve_mismatch" and failure.error_type == c.ERROR_TYPE_REMOTE_RESET:
        text = "CURVE (its log says so)" if client is None else "a producer that has no CURVE"
    else:
        assert failure.error_type == error_type
    assert text in failure.text
    assert text in caplog.text
    assert first or "a connection was refused" in caplog.text
    for pair in keys[:3]:
        assert pair.secret_text() not in caplog.text


def test_the_log_names_the_client_that_is_denied(keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    """By its address and its public key, which its owner can compare with the file."""
    with (
        publisher(keys=keys.server()) as producer,
        rig(producer.server.address, keys=keys.consumer(keys.stranger, keys.producer), **FAST) as consumer,
    ):
        consumer.settle(request("r", feature("a", 4)))
        wait_for(lambda: producer.server.counts["curve_denied"])
    (line,) = [each for each in caplog.messages if "curve_allowed_clients does not have" in each]
    key = line.partition("public key ")[2].partition(",")[0]
    assert "127.0.0.1" in line
    assert key in keys.stranger.public.read_text()


def test_others_are_served_while_clients_are_denied(keys: Keys) -> None:
    """A stranger that connects again and again costs the others nothing that shows."""
    with (
        publisher(keys=keys.server()) as producer,
        rig(
            producer.server.address, keys=keys.consumer(keys.client, keys.producer), region_bytes=8 << 20
        ) as consumer,
    ):
        context = zmq.Context()
        strangers = [context.socket(zmq.DEALER) for _ in range(20)]
        for socket in strangers:
            keys.consumer(keys.stranger, keys.producer).apply(socket)
            socket.setsockopt(zmq.RECONNECT_IVL, 1)
            socket.connect(f"tcp://{producer.server.address}")
        wait_for(lambda: producer.server.counts["curve_denied"] >= 20)
        producer.save("a", tensor(4))
        consumer.wait(request("r", feature("a", 4)))
        assert consumer.consumer.has("a")
        context.destroy(linger=0)


def test_without_a_handler_no_client_is_served(keys: Keys) -> None:
    """The socket fails closed: a server whose authenticator is missing accepts not even allowed clients."""
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    keys.server().apply(router)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    keys.consumer(keys.client, keys.producer).apply(dealer)
    dealer.setsockopt(zmq.RECONNECT_IVL, -1)
    monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    dealer.connect(f"tcp://127.0.0.1:{port}")
    with contextlib.suppress(zmq.Again):  # there is no connection to send on if it has been refused already
        dealer.send(protocol.encode(protocol.Probe(1, MODEL, "a")), zmq.NOBLOCK)
    assert monitor.poll(60_000)
    event: Any = zmq.utils.monitor.recv_monitor_message(monitor)
    assert event["event"] == zmq.EVENT_DISCONNECTED
    assert not router.poll(0)
    dealer.disable_monitor()
    context.destroy(linger=0)
