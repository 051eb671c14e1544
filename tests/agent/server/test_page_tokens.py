"""Tokens of the page: whom they name, until when, and what is none."""

from __future__ import annotations

import base64
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.errors import AccessError, ContractError
from penstock.agent.server import LOCAL, Caller, Role
from penstock.agent.server.page_tokens import (
    MAX_NAME_BYTES,
    MAX_TOKEN_CHARACTERS,
    TOKEN_SECONDS,
    PageTokens,
    ServedPage,
)
from penstock.proto.v1 import admin_pb2 as admin

_ALPHABET = string.ascii_letters + string.digits + "-_"
_NAMES = st.text(min_size=1, max_size=100).filter(str.isprintable)


class Clock:
    """Says the time that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """Return it."""
        return self.now


def _tokens(*, by_token: bool = True, writes: bool = True) -> PageTokens:
    tokens = PageTokens()
    tokens.page = ServedPage("http://127.0.0.1:1/", by_token, writes)
    return tokens


@given(name=_NAMES, role=st.sampled_from(Role))
def test_a_token_names_whom_it_was_made_for(name: str, role: Role) -> None:
    """And is text that needs no quoting in an address, of a bounded length."""
    tokens = PageTokens()
    token = tokens.make(Caller(name, role))

    assert tokens.read(token) == Caller(name, role)
    assert set(token) <= set(_ALPHABET)
    assert len(token) <= MAX_TOKEN_CHARACTERS


@given(bit=st.integers(min_value=0), name=_NAMES)
def test_a_changed_bit_makes_it_none(bit: int, name: str) -> None:
    """Of its name, its role, its end and its signature."""
    tokens = PageTokens()
    token = tokens.make(Caller(name, Role.READ))
    content = bytearray(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    content[bit // 8 % len(content)] ^= 1 << bit % 8

    assert tokens.read(base64.urlsafe_b64encode(content).decode().rstrip("=")) is None


@given(place=st.integers(min_value=0), character=st.sampled_from(_ALPHABET + "=+/ .\n\0é"))
def test_a_changed_character_makes_it_none(place: int, character: str) -> None:
    """Also where a lenient decoder would skip it, or ignore its last bits."""
    tokens = PageTokens()
    for name in ("a", "ab", "abc"):
        token = tokens.make(Caller(name, Role.READ))
        where = place % len(token)
        for other in (
            token[:where] + character + token[where + 1 :],
            token[:where] + character + token[where:],
            token + character,
        ):
            assert other == token or tokens.read(other) is None


@given(token=st.one_of(st.text(max_size=1_000), st.text(_ALPHABET, max_size=1_000)))
def test_any_text_is_none(token: str) -> None:
    """Without an error."""
    assert PageTokens().read(token) is None


@pytest.mark.parametrize("length", [MAX_TOKEN_CHARACTERS + 1, 1 << 20])
def test_a_long_one_is_not_decoded(length: int) -> None:
    """Whatever it has."""
    assert PageTokens().read("A" * length) is None


def test_another_process_has_another_key() -> None:
    """A restart ends all tokens."""
    token = PageTokens().make(Caller("ada", Role.WRITE))

    assert PageTokens().read(token) is None


def test_it_ends() -> None:
    """By the steady clock."""
    clock = Clock()
    tokens = PageTokens(clock)
    token = tokens.make(Caller("ada", Role.WRITE))

    clock.now += TOKEN_SECONDS - 0.01
    assert tokens.read(token) is not None
    clock.now += 0.02
    assert tokens.read(token) is None


@pytest.mark.parametrize("name", ["é" * (MAX_NAME_BYTES // 2 + 1), "a\nb", "\u202e", "a\0"])
def test_a_name_that_cannot_be_in_a_token_is_refused(name: str) -> None:
    """It would be shown, and be in the audit log."""
    with pytest.raises(ContractError, match="author of a token"):
        PageTokens().make(Caller(name, Role.READ))


def test_the_longest_name_fits() -> None:
    """Its token is as long as any."""
    tokens = PageTokens()
    caller = Caller("x" * MAX_NAME_BYTES, Role.WRITE)
    token = tokens.make(caller)

    assert tokens.read(token) == caller
    assert len(token) <= MAX_TOKEN_CHARACTERS


@given(role=st.sampled_from(Role), asked=st.integers(min_value=-5, max_value=5))
def test_a_role_never_grows(role: Role, asked: int) -> None:
    """What is granted is what was asked for, at most what the caller has; more, and what is no role, is refused."""
    caller = Caller("ada", role)
    if asked not in (0, *Role):
        with pytest.raises(ContractError, match="unknown"):
            caller.page_role(asked)
    elif asked > role:
        with pytest.raises(AccessError, match="--admin-allow ada=write"):
            caller.page_role(asked)
    else:
        assert caller.page_role(asked) == (asked or role)


@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("role", Role)
def test_a_page_that_only_reads_has_no_token_that_writes(role: Role, writes: bool) -> None:
    """The answer says what the token says."""
    tokens = _tokens(writes=writes)
    request = admin.IssuePageTokenRequest(
        author="ada@shop", page_role=admin.PageRole.Name(LOCAL.page_role(role))
    )
    answer = tokens.issue(request)
    expected = min(role, Role.WRITE if writes else Role.READ)

    assert tokens.read(answer.token) == Caller("ada@shop", expected)
    assert (int(answer.page_role), answer.life.seconds) == (int(expected), TOKEN_SECONDS)


def test_without_a_role_it_reads() -> None:
    """The admin service sets one; whoever forgets that gives nothing away."""
    assert _tokens().issue(admin.IssuePageTokenRequest()).page_role == admin.PAGE_ROLE_READ


def test_there_is_none_where_none_is_taken() -> None:
    """A page behind certificates or a proxy has its address only; no page has nothing."""
    request = admin.IssuePageTokenRequest(author="ada", page_role=admin.PAGE_ROLE_WRITE)

    assert _tokens(by_token=False).issue(request) == admin.IssuePageTokenResponse(
        address="http://127.0.0.1:1/"
    )
    assert PageTokens().issue(request) == admin.IssuePageTokenResponse()


def test_the_key_is_in_no_text_of_it() -> None:
    """Whoever logs it logs no secret."""
    tokens = PageTokens()

    assert tokens._key.hex() not in repr(tokens)
    assert repr(tokens._key) not in repr(tokens)
