"""Explanations of requests: one sentence for each cause."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.traces.spans import semconv
from penstock.proto.v1 import common_pb2
from penstock.proto.v1.events_pb2 import LEASE_ENDING_EXPIRED

from tests.support.agent.batches import PEER, TIME, event, transfer_failure
from tests.support.agent.questions import sentences_of, trace_of
from tests.support.agent.stories import (
    DECODE,
    DECODE_CORE,
    DECODE_WORKER,
    MS,
    SECOND,
    clean_up,
    closed_decode,
    failed_load,
    lease,
    outcome,
)

OTHER = "cmpl-other-0-ffffffff"


async def test_the_peer_that_blocked_a_load_is_named(book):
    """A load that never reached its peer is explained with the peer whose handshake blocked it."""
    culprit = {"address": "10.0.0.9:5600"}
    given_up = failed_load(
        mode=common_pb2.FAILURE_MODE_COLLATERAL,
        error_type=common_pb2.ERROR_TYPE_TIMEOUT,
        error_text="it waited 6.0 s",
        caused_by_request_id=OTHER,
        caused_by_peer=culprit,
    )
    await book.append([(DECODE_WORKER, given_up), (DECODE_WORKER, DELAY), (DECODE_CORE, closed_decode())])
    (sentence,) = sentences_of(book, DECODE)
    assert f"could not load its KV state from {PEER}" in sentence
    assert (
        "(collateral, timeout, caused by the handshake with 10.0.0.9:5600 that request"
        f" {OTHER} began: it waited 6.0 s)"
    ) in sentence
    (load,) = (span for span in trace_of(book, DECODE).spans if span.name == semconv.KV_LOAD)
    assert (
        load.attributes[semconv.CAUSED_BY_PEER]
        == load.attributes[semconv.DELAYED_BY_PEER]
        == culprit["address"]
    )


# As vLLM 0.32 ends it: with advice that lets an engine read blocks as what they are not.
MISMATCH = (
    "hash mismatch. Both must be identical.Disable this check using --kv-transfer-config "
    '\'{"kv_connector_extra_config": {"enforce_handshake_compat": false}}\''
)
INCOMPATIBLE: dict[str, Any] = {
    "error_type": common_pb2.ERROR_TYPE_INCOMPATIBLE,
    "error_text": "",
    "error_class": "",
    "incompatibility": {"factors": ["nixl_version", "block_size"]},
}


def slow_wait():
    """Build the end of a wait of 3 s."""
    return event(
        "deferral_end",
        DECODE,
        time_ns=TIME + 3 * SECOND,
        reason=common_pb2.DEFERRAL_REASON_REMOTE_KV,
        ending=common_pb2.DEFERRAL_ENDING_READY,
        start_time_unix_nano=TIME,
        peer={"address": PEER},
    )


NOTIFICATION = transfer_failure(DECODE, mode=common_pb2.FAILURE_MODE_NOTIFICATION, error_text="gone")
DELAY = event(
    "transfer_delayed",
    DECODE,
    channel=common_pb2.CHANNEL_KV,
    peer={"address": PEER},
    delay_nano=400 * MS,
    caused_by_peer={"address": "10.0.0.9:5600"},
)


def timeless(kind, **fields):
    """Build an event without the start time of what it ends."""
    return event(kind, DECODE, **fields)


REHEARSED = failed_load()
REHEARSED.rehearsal = True

QUARANTINED = outcome(
    DECODE,
    mode=common_pb2.FAILURE_MODE_UNSPECIFIED,
    error_type=common_pb2.ERROR_TYPE_UNSPECIFIED,
    decided_by=common_pb2.DECIDED_BY_QUARANTINE,
    reason="",
)
WITHOUT_ENCODER = outcome(
    DECODE,
    channel=common_pb2.CHANNEL_EC,
    mode=common_pb2.FAILURE_MODE_PROBE,
    decided_by=common_pb2.DECIDED_BY_QUARANTINE,
    items_recomputed=2,
    tokens_recomputed=0,
    reason="",
)
REHEARSED_OUTCOME = outcome(DECODE)
REHEARSED_OUTCOME.rehearsal = True


def pinned(*, released=False, **fields):
    """Build a lease from TIME on, released 3 s later."""
    return event(
        "blocks_pinned",
        DECODE,
        time_ns=TIME + released * 3 * SECOND,
        channel=common_pb2.CHANNEL_KV,
        peer={"address": PEER},
        blocks=26,
        since_time_unix_nano=TIME,
        released=released,
        **fields,
    )


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([failed_load(**INCOMPATIBLE)], "(handshake, incompatible, they differ in nixl_version, block_size)"),
        (
            [failed_load(**{**INCOMPATIBLE, "error_text": MISMATCH})],
            "they differ in nixl_version, block_size: hash mismatch. Both must be identical)",
        ),
        ([failed_load()], "no action was reported"),
        ([REHEARSED], f"from {PEER} in a drill (handshake"),
        ([failed_load(attempt=2)], f"from {PEER} (attempt 2) (handshake"),
        ([NOTIFICATION], f"had a failure with {PEER} (notification, refused: gone); it ended (stop)"),
        ([outcome(DECODE)], f"did without its KV load from {PEER} (handshake, refused): 400 tokens were"),
        (
            [QUARANTINED],
            (
                f"did without its KV load from {PEER} (the peer is in quarantine): 400 tokens were computed again,"
                " 12 were kept, decided by the peer's quarantine under policy 0123456789ab; it ended"
            ),
        ),
        (
            [outcome(DECODE, decided_by=common_pb2.DECIDED_BY_QUARANTINE)],
            f"its KV load from {PEER} (the peer is in quarantine since handshake, refused): 400 tokens were",
        ),
        (
            [WITHOUT_ENCODER],
            (
                f"its EC load from {PEER} (the peer is in quarantine since probe, refused): 2 items were encoded here,"
                " decided by the peer's quarantine under policy 0123456789ab"
            ),
        ),
        ([REHEARSED_OUTCOME], f"load from {PEER} in a drill (handshake, refused): 400 tokens were"),
        (
            [pinned()],
            f"left 26 blocks pinned because {PEER} may still write to them; they are not released yet",
        ),
        ([pinned(), pinned(released=True)], "may still write to them; they were released after 3.0 s"),
        ([DELAY], f"waited 400 ms longer for {PEER} because the handshake with 10.0.0.9:5600 was in the way"),
        ([slow_wait()], f"was deferred for 3.0 s (remote_kv, {PEER}); it ended (stop) after"),
        (
            [timeless("deferral_end", reason=1, ending=1)],
            "computed 412 prompt tokens, without trouble; it ended (stop)",
        ),
        (
            [timeless("lease_closed", blocks=3, ending=LEASE_ENDING_EXPIRED)],
            "kept 3 blocks for a reader that did not come in an unknown time",
        ),
        ([lease(DECODE, expired=True)], "kept 26 blocks for a reader that did not come in 300 ms"),
        ([], "computed 412 prompt tokens, without trouble; it ended (stop) after 500 ms"),
    ],
)
async def test_explain_other_causes(book, entries, words):
    """Each cause has its sentence."""
    end = max([TIME, *(entry.time_unix_nano for entry in entries)]) + 500 * MS
    await book.append(
        [(DECODE_CORE, entry) for entry in entries], [(DECODE_CORE, closed_decode(time_ns=end))]
    )
    (sentence,) = sentences_of(book, DECODE)
    assert words in sentence


async def test_explain_what_was_never_scheduled(book):
    """A request aborted before its first step has computed nothing."""
    closing = closed_decode(scheduled_time_unix_nano=0, finish_reason="abort")
    await book.append([(DECODE_CORE, closing)])
    (sentence,) = sentences_of(book, DECODE)
    assert "was not scheduled; it ended (abort)" in sentence


async def test_the_clean_up_after_an_aborted_request_is_no_failure_of_it(book):
    """That request only frees the blocks of the other side, whether it reached that side or not."""
    await book.append([(DECODE_WORKER, failed_load())], [(DECODE_CORE, clean_up())])
    (sentence,) = sentences_of(book, DECODE)
    assert "refused: connection refused): vLLM's own clean-up request; ignore" in sentence


async def test_a_clean_up_is_called_so(book):
    """And nothing is said about its first token."""
    await book.append([(DECODE_CORE, clean_up(gates={"queue_nano": MS}))])
    (sentence,) = sentences_of(book, DECODE)
    assert "is vLLM's own clean-up request; ignore; it ended (abort)" in sentence


async def test_a_user_s_request_that_was_aborted_early_is_no_clean_up(book):
    """There was nothing to be done about its load any more."""
    closing = closed_decode(scheduled_time_unix_nano=0, finish_reason="abort")
    await book.append([(DECODE_WORKER, failed_load())], [(DECODE_CORE, closing)])
    (sentence,) = sentences_of(book, DECODE)
    assert "refused: connection refused): the request had ended before its first step" in sentence
