"""Who may ask the page, and from where: hosts, origins, users, tokens and roles. Pure."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock.agent.errors import AccessError
from penstock.agent.page.wire import AnswerError
from penstock.agent.server import Caller, Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.agent.server.options import PageSettings

OWN_HEADER, OWN_VALUE = "X-Penstock", "page"
"""What a write carries: no page of another site can send it without asking first, and is refused then."""
ANYBODY = Caller("", Role.READ)
"""Who asks on loopback without a token that is valid."""
LINK_NEEDED = (
    "this page takes a token here, and this one is missing, has expired or is of an earlier process; "
    "'agentctl page' prints the page's address with a new one"
)
"""The sentence of a 401."""

_MAX_NAME = 256
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_BEARER = "bearer"


def check_host(host: str, settings: PageSettings) -> None:
    """Check the Host header: a name that points here from elsewhere is another site's.

    Raises:
        AnswerError: the page is not served under that name.

    """
    name = _host_name(host)
    if name != "localhost" and name not in settings.hosts and not _is_address(name):
        raise AnswerError(
            _FORBIDDEN,
            f"the page is not served under the name {name[:_MAX_NAME]!r}; open it by localhost or by its address, or start "
            "with --page-host NAME",
        )


def check_origin(headers: Mapping[str, str]) -> None:
    """Check that no page of another site asks.

    Raises:
        AnswerError: one does.

    """
    if headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise AnswerError(_FORBIDDEN, "the request comes from another site; open this page at its address")
    origin = headers.get("Origin")
    if origin is not None and _origin_host(origin) != headers.get("Host", "").lower():
        raise AnswerError(_FORBIDDEN, "the request comes from another site; open this page at its address")


def check_write(headers: Mapping[str, str]) -> None:
    """Check what a write carries besides.

    Raises:
        AnswerError: something is missing.

    """
    check_origin(headers)
    if "Origin" not in headers:
        raise AnswerError(_FORBIDDEN, "a write needs the header Origin, as browsers send it")
    if headers.get(OWN_HEADER) != OWN_VALUE:
        raise AnswerError(_FORBIDDEN, f"a write needs the header {OWN_HEADER}: {OWN_VALUE}")
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise AnswerError(_FORBIDDEN, "a write is JSON: send Content-Type: application/json")


def token_in(headers: Mapping[str, str]) -> str:
    """Return the token that a request carries in its header Authorization; empty for none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == _BEARER else ""


def holder_of(named: Caller | None, settings: PageSettings) -> Caller:
    """Return who asks on loopback.

    Args:
        named: by a token that is valid; None without one.
        settings: of the page.

    Raises:
        AnswerError: reading takes a token.

    """
    if named is None and settings.token_reads:
        raise AnswerError(_UNAUTHORIZED, LINK_NEEDED)
    return named or ANYBODY


def user_of(headers: Mapping[str, str], certificate: Sequence[str] | None, settings: PageSettings) -> Caller:
    """Return who asks, by certificate or by the proxy's header; there is a list of users.

    Raises:
        AnswerError: the request names no user, or one that is not on the list.

    """
    assert settings.allow is not None  # noqa: S101  (the caller has looked)
    if settings.user_header:
        name = headers.get(settings.user_header, "")
        if not name or not name.isprintable() or len(name) > _MAX_NAME:
            raise AnswerError(
                _FORBIDDEN,
                f"the header {settings.user_header} does not name the user; open the page through the proxy",
            )
        names: Sequence[str] = (name,)
    else:
        names = certificate or ()
    try:
        return settings.allow.admit(names)
    except AccessError:
        shown = ", ".join(repr(name[:_MAX_NAME]) for name in names[:8]) or "a caller without a name"
        raise AnswerError(
            _FORBIDDEN,
            f"{shown} is not on the list of the page; start with --page-allow NAME=read or NAME=write",
        ) from None


def may_write(caller: Caller, settings: PageSettings) -> bool:
    """Return whether *caller* may change something."""
    return settings.write and caller.role >= Role.WRITE


def token_state(caller: Caller, token: str, settings: PageSettings) -> str:
    """Return what *caller* has to know of tokens, with *token* in the request.

    Returns:
        ``needed`` to write, ``ended`` where the token is not valid any more; empty where no other would allow more.

    """
    if settings.allow is not None or not settings.write or caller.role >= Role.WRITE:
        return ""
    return "ended" if token and caller is ANYBODY else "needed"


def check_role(caller: Caller, settings: PageSettings) -> None:
    """Check that *caller* may write.

    Raises:
        AnswerError: the page is read-only, a token is missing, or the user's role is to read.

    """
    if not settings.write:
        raise AnswerError(_FORBIDDEN, "this page is read-only; start with --page-write yes, or use agentctl")
    if caller is ANYBODY:
        raise AnswerError(_UNAUTHORIZED, LINK_NEEDED)
    if caller.role < Role.WRITE and settings.allow is None:
        raise AnswerError(
            _FORBIDDEN,
            f"the token of {caller.name!r} only reads; 'agentctl page', called with write access, prints one that writes",
        )
    if caller.role < Role.WRITE:
        raise AnswerError(
            _FORBIDDEN, f"{caller.name!r} has read access; --page-allow {caller.name}=write grants more"
        )


def author_of(caller: Caller, settings: PageSettings) -> str:
    """Return the author for the audit log."""
    if settings.tls is not None:
        return f"tls:{caller.name} (page)"
    # A token has the author that the admin service knows.
    return f"{caller.name} (page)"


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _origin_host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
