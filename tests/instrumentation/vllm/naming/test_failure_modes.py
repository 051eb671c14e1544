"""Which mode and error type a failure gets, as a table."""

from __future__ import annotations

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.naming import failure_modes
from penstock.instrumentation.vllm.naming.failure_modes import (
    TEXT_MAX,
    ExceptionNote,
    annotate,
    classify,
    cut,
    mode_of,
)

MISMATCH = "NIXL compatibility hash mismatch. Local: 0a1b, Remote: 2c3d. Prefill and decode instances differ."


def caused(error: Exception, cause: Exception) -> Exception:
    """Return *error* as if raised from *cause*."""
    error.__cause__ = cause
    return error


class nixlRemoteDisconnectError(Exception):  # noqa: N801  (NIXL's name)
    """As NIXL's bindings raise it."""


@pytest.mark.parametrize(
    ("upstream", "mode"),
    [
        ("handshake_setup_failed", c.FAILURE_MODE_HANDSHAKE),
        ("handshake_failed", c.FAILURE_MODE_HANDSHAKE),
        ("push_handshake_failed", c.FAILURE_MODE_HANDSHAKE),
        ("push_reg_handshake_failed", c.FAILURE_MODE_HANDSHAKE),
        ("push_reg_notif_failed", c.FAILURE_MODE_NOTIFICATION),
        ("notification_failed", c.FAILURE_MODE_NOTIFICATION),
        ("transfer_setup_failed", c.FAILURE_MODE_SETUP),
        ("transfer_failed", c.FAILURE_MODE_TRANSFER),
        ("transfer_exception", c.FAILURE_MODE_EXCEPTION),
        ("transfer_release_failed", c.FAILURE_MODE_RELEASE),
        ("heartbeat_notif_failed", c.FAILURE_MODE_NOTIFICATION),
        ("read_setup_failed", c.FAILURE_MODE_SETUP),
        ("push_setup_failed", c.FAILURE_MODE_SETUP),
        ("a_new_handshake_problem", c.FAILURE_MODE_HANDSHAKE),
        ("something_else", c.FAILURE_MODE_LOAD),
    ],
)
def test_mode(upstream: str, mode: int) -> None:
    """Every name that vLLM uses has its mode; a new one gets that of the first word that it shares."""
    assert mode_of(upstream) == mode


_ERRORS: list[tuple[Exception | None, int]] = [
    (zmq.Again(), c.ERROR_TYPE_TIMEOUT),
    (TimeoutError("late"), c.ERROR_TYPE_TIMEOUT),
    (ConnectionRefusedError("no"), c.ERROR_TYPE_REFUSED),
    (ConnectionResetError("gone"), c.ERROR_TYPE_REMOTE_RESET),
    (BrokenPipeError("gone"), c.ERROR_TYPE_REMOTE_RESET),
    (nixlRemoteDisconnectError("NIXL_ERR_REMOTE_DISCONNECT"), c.ERROR_TYPE_REMOTE_RESET),
    (RuntimeError(MISMATCH), c.ERROR_TYPE_INCOMPATIBLE),
    (RuntimeError("Failed to decode NixlHandshakePayload."), c.ERROR_TYPE_DECODE),
    (msgspec.ValidationError("Expected `str`"), c.ERROR_TYPE_DECODE),
    (msgspec.DecodeError("truncated"), c.ERROR_TYPE_DECODE),
    (caused(RuntimeError("it broke"), TimeoutError()), c.ERROR_TYPE_TIMEOUT),
    (
        RuntimeError("Remote NIXL agent engine ID mismatch. Expected a,received b."),
        c.ERROR_TYPE_WRONG_ENGINE,
    ),
    (AssertionError("block sizes"), c.ERROR_TYPE_INCOMPATIBLE),
    (NotImplementedError("pcp"), c.ERROR_TYPE_INCOMPATIBLE),
    (KeyError("x"), c.ERROR_TYPE_OTHER),
    (RuntimeError("who knows"), c.ERROR_TYPE_OTHER),
    (None, c.ERROR_TYPE_OTHER),
]


@pytest.mark.parametrize(("error", "error_type"), _ERRORS, ids=repr)
def test_error_type_of_a_handshake(error: Exception | None, error_type: int) -> None:
    """What an exception tells is its class; what it does not tell is not guessed."""
    assert classify("handshake_failed", error).error_type == error_type


def test_each_error_type_is_in_the_table() -> None:
    """Of those that a class or a text leads to."""
    known = {*failure_modes._CLASSES.values(), *(error_type for _, error_type in failure_modes._TEXTS)}
    assert known - {error_type for _, error_type in _ERRORS} == set()


def test_a_check_that_fails_elsewhere() -> None:
    """An assertion says "incompatible" only where it is a handshake's."""
    assert classify("transfer_exception", AssertionError("x")).error_type == c.ERROR_TYPE_OTHER


def test_fields() -> None:
    """Class, text, vLLM's name and both hashes are on the wire."""
    assert classify("handshake_failed", RuntimeError(MISMATCH)).fields() == {
        "mode": c.FAILURE_MODE_HANDSHAKE,
        "error_type": c.ERROR_TYPE_INCOMPATIBLE,
        "upstream_type": "handshake_failed",
        "error_class": "RuntimeError",
        "error_text": MISMATCH,
        "incompatibility": {"local_hash": "0a1b", "remote_hash": "2c3d", "factors": []},
    }


def test_text_without_an_exception() -> None:
    """Where vLLM has no exception, what it knows is the text."""
    failure = classify("transfer_failed", None, "NIXL reports the transfer in state ERR")
    assert (failure.error_class, failure.error_text) == ("", "NIXL reports the transfer in state ERR")


@given(st.text(max_size=3 * TEXT_MAX))
def test_cut(text: str) -> None:
    """A text is a prefix of itself, at most 1 KiB long, and whole where it is short."""
    shorter = cut(text)
    assert len(shorter.encode()) <= TEXT_MAX
    assert text.startswith(shorter)
    assert shorter == text or len(text.encode()) > TEXT_MAX


def test_refused() -> None:
    """A time-out after which the port was found closed is a refusal, in class and text."""
    error = zmq.Again()
    annotate(error, ExceptionNote(refused=True))
    failure = classify("handshake_failed", error)
    assert failure.error_type == c.ERROR_TYPE_REFUSED
    assert "nothing listens there" in failure.error_text
    assert failure.error_class == "Again"


def test_what_was_found_out() -> None:
    """Factors that differ and the mark of a rehearsal travel with the exception."""
    error = RuntimeError(MISMATCH)
    annotate(error, ExceptionNote(factors=("dtype",), rehearsal=True))
    failure = classify("handshake_failed", error)
    assert failure.rehearsal
    assert failure.fields()["incompatibility"]["factors"] == ["dtype"]
