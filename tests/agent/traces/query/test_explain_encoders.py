"""Explanations say why an encoder did not answer, as far as its engine and its own request are known."""

from __future__ import annotations

import pytest
from penstock.agent.pairs import EncoderStates
from penstock.agent.traces.query.explain import explain_request
from penstock.proto.v1 import admin_pb2, common_pb2

from tests.support.agent.batches import PEER, TIME, deferral_start, transfer_failure
from tests.support.agent.stories import MS, SECOND, TRACEPARENT, closed, probe, source

LANGUAGE = source(31, "language", "both")
ENCODER = source(41, "encoder", "encoder")
ASKING, ENCODING = "chatcmpl-chat-cccccccc", "chatcmpl-chat-dddddddd"
NOW = TIME + 60 * SECOND


def _closed(name, time_ns):
    return closed(name, time_ns=time_ns, traceparent=TRACEPARENT)


def _timeout():
    return transfer_failure(
        ASKING,
        channel=common_pb2.CHANNEL_EC,
        connector="ZmqECConnector",
        mode=common_pb2.FAILURE_MODE_PROBE,
        error_type=common_pb2.ERROR_TYPE_TIMEOUT,
        start_time_unix_nano=TIME + 100 * MS,
        time_ns=TIME + 600 * MS,
        error_text="no answer within 0.5 s",
    )


def _engine(**fields):
    facts = {"ec_address": PEER, "start_time_unix_nano": fields.pop("started", TIME - 900 * SECOND)}
    return admin_pb2.Engine(
        key={"server": "encoder", "engine": "0"}, connected=True, facts=facts, queue={"running": 1}, **fields
    )


async def _about_the_encoder(book, *batches, engines=None):
    await book.append(*batches)
    with book.journal.reader() as reader:
        found = explain_request(
            reader, "chat", encoders=EncoderStates.of([_engine()] if engines is None else engines, NOW)
        ).sentences
    return [each for each in found if each.startswith(f"Of the encoder that {ASKING} asked: ")]


async def test_a_request_that_waits_at_the_encoder(book):
    """The encoder's request of the same trace has not ended, and its scheduler says what it has."""
    (sentence,) = await _about_the_encoder(
        book,
        [(LANGUAGE, _timeout()), (LANGUAGE, _closed(ASKING, time_ns=TIME + SECOND))],
        [(ENCODER, deferral_start(ENCODING, peer=""))],
        [(ENCODER, _closed(ENCODING, time_ns=TIME + 2 * SECOND))],
    )
    assert sentence == (
        f"Of the encoder that {ASKING} asked: {PEER} is engine encoder/0: no request waits in its scheduler now, 1 is "
        f"running; its request {ENCODING} had not ended when it was asked."
    )


async def test_an_encoder_that_was_started_meanwhile(book):
    """Its request is not of this life; nothing is said of a request that the log does not have."""
    (sentence,) = await _about_the_encoder(
        book,
        [(LANGUAGE, _timeout()), (LANGUAGE, _closed(ASKING, time_ns=TIME + SECOND))],
        engines=[_engine(started=TIME + 30 * SECOND)],
    )
    assert (
        "it was started 30 s ago, after it was asked: it has nothing of what was encoded before" in sentence
    )
    assert "request" not in sentence.split("encoded before")[1].replace("no request waits", "")


async def test_an_output_that_was_encoded_and_is_not_there(book):
    """An encoder that answers "not there" after its request has ended does not keep what it encoded."""
    missed = probe(ASKING, common_pb2.PROBE_RESULT_MISS, end_time_unix_nano=TIME + 900 * MS)
    (sentence,) = await _about_the_encoder(
        book,
        [(LANGUAGE, missed), (LANGUAGE, _closed(ASKING, time_ns=TIME + SECOND))],
        [(ENCODER, _closed(ENCODING, time_ns=TIME + 400 * MS))],
    )
    assert sentence.endswith(
        f"its request {ENCODING} had ended 500 ms before: what it encoded is not kept any more, or had no room."
    )


@pytest.mark.parametrize("ended", [False, True])
async def test_a_request_that_still_waits(book, ended):
    """It is asked now; a wait that has ended asks nobody."""
    waits = deferral_start(
        ASKING, reason=common_pb2.DEFERRAL_REASON_ENCODER_CACHE, channel=common_pb2.CHANNEL_EC
    )
    batches = [
        [(LANGUAGE, waits)],
        *([[(LANGUAGE, _closed(ASKING, time_ns=TIME + SECOND))]] if ended else []),
    ]
    found = await _about_the_encoder(book, *batches, engines=[])
    assert len(found) == (not ended)
    assert all(f"no engine known here announces {PEER}" in each for each in found)


async def test_failures_that_say_why_themselves(book):
    """An item that was evicted, or of another model: the encoder has answered."""
    evicted = _timeout()
    evicted.transfer_failure.error_type = common_pb2.ERROR_TYPE_EVICTED
    assert not await _about_the_encoder(
        book, [(LANGUAGE, evicted), (LANGUAGE, _closed(ASKING, time_ns=TIME + SECOND))]
    )
