"""Tokens of a page on loopback: signed with a key that lives and ends with the process; nothing is stored."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.duration_pb2 import Duration
from penstock.agent.errors import ContractError
from penstock.agent.server.callers import Caller, Role
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_SECONDS = 12 * 3600
"""How long a token is valid."""
MAX_NAME_BYTES = 512
"""Maximum bytes of the name in a token, as UTF-8."""

_KEY_BYTES = 32
_DIGEST = "sha256"
_DIGEST_BYTES = 32
# The role, and the end in milliseconds of the steady clock; the name follows.
_HEAD = struct.Struct(">BQ")
_UNNAMED = "local"

MAX_TOKEN_CHARACTERS = -(-(_HEAD.size + MAX_NAME_BYTES + _DIGEST_BYTES) // 3) * 4
"""Maximum characters of a token; a longer one is not decoded."""


@dataclass(frozen=True, slots=True)
class ServedPage:
    """The page of this process.

    Attributes:
        address: as a browser takes it.
        by_token: whether tokens say who asks; certificates or a proxy do otherwise.
        writes: whether it has the writing half.

    """

    address: str
    by_token: bool
    writes: bool


class PageTokens:
    """Makes and checks the tokens of the page of this process; from the event loop's thread.

    Attributes:
        page: set by the page's server while it serves; None for no page.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Draw a key; *clock* returns seconds that never go back."""
        self.page: ServedPage | None = None
        self._clock = clock
        self._key = secrets.token_bytes(_KEY_BYTES)

    def make(self, caller: Caller) -> str:
        """Return a token for *caller*, valid from now for :data:`TOKEN_SECONDS`.

        Raises:
            ContractError: the name is too long, or has characters that cannot be printed.

        """
        name = caller.name.encode()
        if len(name) > MAX_NAME_BYTES or not caller.name.isprintable():
            raise ContractError(
                f"the author of a token has at most {MAX_NAME_BYTES} bytes, all of them printable; agentctl takes it from USER"
            )
        body = _HEAD.pack(caller.role, int((self._clock() + TOKEN_SECONDS) * 1000)) + name
        return base64.urlsafe_b64encode(body + self._signed(body)).decode().rstrip("=")

    def read(self, token: str) -> Caller | None:
        """Return whom *token* names; None if it is none of this process, or its time is over."""
        content = _decoded(token)
        if content is None:
            return None
        body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        if not hmac.compare_digest(digest, self._signed(body)):
            return None
        role, end = _HEAD.unpack_from(body)
        if self._clock() * 1000 >= end:
            return None
        return Caller(body[_HEAD.size :].decode(), Role(role))

    def issue(self, request: admin.IssuePageTokenRequest) -> admin.IssuePageTokenResponse:
        """Answer a caller of the admin service, whose name and role the request has by now.

        Raises:
            ContractError: the name cannot be in a token.

        """
        page = self.page
        if page is None:
            return admin.IssuePageTokenResponse()
        if not page.by_token:
            return admin.IssuePageTokenResponse(address=page.address)
        may_write = page.writes and request.page_role == admin.PAGE_ROLE_WRITE
        role = Role.WRITE if may_write else Role.READ
        return admin.IssuePageTokenResponse(
            address=page.address,
            token=self.make(Caller(request.author or _UNNAMED, role)),
            page_role=admin.PageRole.Name(role),
            life=Duration(seconds=TOKEN_SECONDS),
        )

    def _signed(self, body: bytes) -> bytes:
        return hmac.digest(self._key, body, _DIGEST)


def _decoded(token: str) -> bytes | None:
    """Return the bytes of a token; None for one that :meth:`PageTokens.make` cannot have written."""
    if len(token) > MAX_TOKEN_CHARACTERS or not token.isascii():
        return None
    try:
        content = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError):
        return None
    # Other characters are skipped by the decoder, and the last one has bits of no meaning.
    if base64.urlsafe_b64encode(content).decode().rstrip("=") != token:
        return None
    return content if len(content) >= _HEAD.size + _DIGEST_BYTES else None
