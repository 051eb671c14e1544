"""The object for machines: each fact by table, and any text whatever by property; the published schema is of the same constants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming.peers import Peer
from penstock.instrumentation.vllm.recovery.client_error import ClientError, ClientText, describe
from penstock.instrumentation.vllm.recovery.error_facts import (
    BYTES_MAX,
    ERROR_TYPE_WORDS,
    TEXT_MAX,
    blocks_held,
    decode,
    error_facts,
    retry_after_s,
)
from penstock.instrumentation.vllm.requests import MODE_WORDS
from penstock.instrumentation.vllm.requests.affected import Cause
from penstock.rules import DecidedBy, Decision, Outcome, Trigger

from tests.support.manual_clock import SECOND
from tests.support.script import load_script

_PUBLISHED = Path(__file__).parents[4] / "docs" / "reference" / "client-error.schema.json"
script: Any = load_script("client_error_schema")

_texts = st.text(st.characters(), max_size=4 * TEXT_MAX)
_causes = st.builds(Cause, st.integers(0, 20), st.integers(0, 20))
_decisions = st.builds(
    Decision, st.just(Outcome.FAILED), st.sampled_from(DecidedBy), _texts, st.just("a.field"), policy=_texts
)
_peers = st.none() | st.builds(Peer, _texts, _texts)
_waits = st.none() | st.integers(0, 10**12)


def decision(
    decided_by: DecidedBy = DecidedBy.POLICY, reason: str = "kvLoadFailure.action: fail", policy: str = ""
) -> Decision:
    """Return a decision to fail."""
    return Decision(Outcome.FAILED, decided_by, reason, policy=policy)


def test_the_object() -> None:
    """All facts, where all are known; and none where nothing is."""
    cause, peer = Cause(c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_REFUSED), Peer("p:1", "e")
    facts = {
        "retryable": True,
        "channel": "kv",
        "peer": {"address": "p:1", "engine_id": "e"},
        "mode": "handshake",
        "error_type": "refused",
        "decided_by": "policy",
        "policy": "policy limits, generation 3",
        "blocks_held": None,
        "held_until": None,
        "retry_after_s": 1,
    }
    named = decision(policy="policy limits, generation 3")
    assert decode(error_facts(cause, peer, named, "KV", None)) == facts
    unknown = {
        "channel": "ec",
        "peer": {"address": None, "engine_id": None},
        "mode": None,
        "error_type": None,
        "policy": None,
    }
    for nobody in (None, Peer()):
        assert decode(error_facts(Cause(0, 0), nobody, decision(), "EC", None)) == facts | unknown


@pytest.mark.parametrize(
    ("decided_by", "wait_ns", "seconds"),
    [
        (DecidedBy.QUARANTINE, 0, 1),
        (DecidedBy.QUARANTINE, SECOND, 1),
        (DecidedBy.QUARANTINE, SECOND + 1, 2),
        (DecidedBy.QUARANTINE, 600 * SECOND, 60),
        (DecidedBy.QUARANTINE, None, 60),
        (DecidedBy.BUDGET, 7 * SECOND, 7),
        (DecidedBy.BUDGET, 600 * SECOND, 60),
        (DecidedBy.BUDGET, None, 1),
        (DecidedBy.POLICY, 7 * SECOND, 1),
        (DecidedBy.DEADLINE, 7 * SECOND, 1),
        (DecidedBy.VLLM, None, 1),
    ],
)
def test_retry_after(decided_by: DecidedBy, wait_ns: int | None, seconds: int) -> None:
    """Until the quarantine ends or the budget has room, in bounds; a second for all else."""
    assert retry_after_s(decided_by, wait_ns) == seconds


@pytest.mark.parametrize(
    ("mode", "error_type", "held"),
    [
        (c.FAILURE_MODE_EXPIRED, c.ERROR_TYPE_EVICTED, False),
        (c.FAILURE_MODE_PROBE, c.ERROR_TYPE_EVICTED, False),
        (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_EVICTED, False),
        # An input's media, which the workers were not given.
        (c.FAILURE_MODE_LOAD, c.ERROR_TYPE_EVICTED, None),
        (c.FAILURE_MODE_HANDSHAKE, c.ERROR_TYPE_REFUSED, None),
        (c.FAILURE_MODE_TIMEOUT, c.ERROR_TYPE_TIMEOUT, None),
        (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_REMOTE_RESET, None),
        (0, 0, None),
    ],
)
def test_blocks_held(mode: int, error_type: int, held: bool | None) -> None:
    """Only what was found gone is not held; the failure behind a quarantine is another request's and says nothing."""
    assert blocks_held(Cause(mode, error_type), decision()) is held
    refused = decision(DecidedBy.QUARANTINE, f"{Trigger.QUARANTINE.value}kvLoadFailure.action: fail")
    assert blocks_held(Cause(mode, error_type), refused) is None


def test_words() -> None:
    """Each mode and each type has its word."""
    assert (MODE_WORDS[c.FAILURE_MODE_LATE_READ], ERROR_TYPE_WORDS[c.ERROR_TYPE_WRONG_ENGINE]) == (
        "late_read",
        "wrong_engine",
    )


@given(cause=_causes, peer=_peers, decided=_decisions, what=st.sampled_from(("KV", "EC")), wait=_waits)
def test_any_texts(cause: Cause, peer: Peer | None, decided: Decision, what: str, wait: int | None) -> None:
    """Whatever the texts are: one short line of ASCII, which comes back as it was and fits the published schema."""
    encoded = error_facts(cause, peer, decided, what, wait)
    assert encoded.isascii()
    assert "\n" not in encoded
    assert len(encoded) <= BYTES_MAX
    facts = decode(encoded)
    assert facts == json.loads(encoded)
    json.dumps(facts, ensure_ascii=False).encode()  # as the API server writes it
    body = {"error": {"message": "m", "type": "t", "code": 503, "penstock": facts}}
    Draft202012Validator(script.schema()).validate(body)


@given(cause=_causes, peer=_peers, decided=_decisions, wait=_waits)
def test_text_and_object_travel_together(
    cause: Cause, peer: Peer | None, decided: Decision, wait: int | None
) -> None:
    """Both come out of a stop reason as they went in, line breaks in the text included."""
    error = describe(cause, peer, decided, wait_ns=wait)
    carried = ClientText.carried(error.encode())
    assert (str(carried), carried.facts) == (error.text, json.loads(error.facts))


@given(st.text() | st.sampled_from(("", "a\nb", 'a\n{"b":1}', "a\n[]", "a\n{", "\n" + "[" * 9_000)))
def test_text_alone(text: str) -> None:
    """A text without an object of ours stays whole."""
    carried = ClientText.carried(f"penstock.load_failure: {text}")
    assert (str(carried), carried.facts) == (text, None)


def test_decode_refuses() -> None:
    """What is too long, or not ours, is no object."""
    own = error_facts(Cause(0, 0), None, decision(), "KV", None)
    assert decode(own) is not None
    for other in ("", "{", "[]", "1", "{}", own + " " * BYTES_MAX):
        assert decode(other) is None
    assert ClientError("t").facts == ""


def test_the_published_schema_is_current() -> None:
    """The file equals the output of ``make schema``."""
    assert _PUBLISHED.read_text() == script.text()
    Draft202012Validator.check_schema(json.loads(script.text()))
