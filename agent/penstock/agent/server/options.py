"""The options of the admin service, of the page and of the feed: where they listen, their certificates, and who may do what."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.agent.errors import ConfigError
from penstock.agent.parsing.options import Option, one_of, parse_optional_path
from penstock.agent.server.addresses import TcpAddress, parse_admin, parse_tcp
from penstock.agent.server.callers import AdminTls, AllowList, parse_allow_list

if TYPE_CHECKING:
    from collections.abc import Mapping

TLS_ATTRIBUTES = ("admin_tls_cert", "admin_tls_key", "admin_tls_client_ca", "admin_allow")
"""The options that :func:`admin_tls` reads."""


def admin_options(default: str) -> tuple[Option, ...]:
    """Return the options of a program whose admin service listens at *default*."""
    return (
        Option(
            "admin-listen",
            default,
            parse_admin,
            "Address for agentctl: unix:///path; host:port with the --admin-tls options; or both, comma-separated.",
            many=True,
        ),
        Option("admin-tls-cert", "", parse_optional_path, "For TCP: PEM file of the agent's certificate."),
        Option(
            "admin-tls-key", "", parse_optional_path, "For TCP: PEM file of the certificate's private key."
        ),
        Option(
            "admin-tls-client-ca",
            "",
            parse_optional_path,
            "For TCP: CA bundle that client certificates must be signed by.",
        ),
        Option(
            "admin-allow",
            "",
            parse_allow_list,
            "For TCP: role of a name in a client certificate: NAME=read or NAME=write.",
            many=True,
        ),
    )


def admin_tls(values: Mapping[str, Any]) -> AdminTls | None:
    """Return the TLS options, which are given all or not at all.

    Raises:
        ConfigError: some are missing for a TCP address, or given without one.

    """
    given = {f"--{name.replace('_', '-')}": values[name] for name in TLS_ATTRIBUTES}
    given["--admin-allow"] = values["admin_allow"].roles
    tcp = next((address for address in values["admin_listen"] if isinstance(address, TcpAddress)), None)
    if tcp is None:
        unused = [flag for flag, value in given.items() if value]
        if unused:
            raise ConfigError(
                f"{unused[0]} is given, but no --admin-listen is host:port; add one, or leave it out"
            )
        return None
    missing = [flag for flag, value in given.items() if not value]
    if missing:
        raise ConfigError(
            f"--admin-listen {tcp} is TCP, which is offered only to clients with a certificate; "
            f"give {', '.join(missing)}, or a unix socket"
        )
    return AdminTls(
        cert=values["admin_tls_cert"],
        key=values["admin_tls_key"],
        client_ca=values["admin_tls_client_ca"],
        allow=values["admin_allow"],
    )


OFF = "off"
PAGE_ATTRIBUTES = (
    "page",
    "page_read",
    "page_write",
    "page_user_header",
    "page_allow",
    "page_host",
    "trace_url_template",
)
"""The options that :func:`page_settings` reads."""

_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
# Headers that any client sends by itself: none of them says who it is.
_COMMON = frozenset(
    {"host", "origin", "cookie", "accept", "connection", "referer", "content-type", "x-penstock"}
)
_URL = re.compile(r"https?://[!-~]{1,2000}")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class PageSettings:
    """How the page is served.

    Attributes:
        write: whether it has the writing half.
        user_header: the header in which a proxy says who asks; empty for none.
        tls: the admin service's certificates; there if, and only if, clients show one to the page.
        allow: roles by name; None on loopback without a header, where tokens do.
        token_reads: whether reading takes a token as writing does; False where *allow* is there.
        hosts: names by which browsers may reach it, besides localhost and addresses; in lower case.
        trace_url_template: where the operator's trace backend shows a trace, with `TRACE_ID`; empty for nowhere.

    """

    address: TcpAddress
    write: bool
    user_header: str
    tls: AdminTls | None
    allow: AllowList | None
    hosts: tuple[str, ...]
    token_reads: bool = False
    trace_url_template: str = ""


def parse_page(text: str) -> TcpAddress | None:
    """Parse ``host:port``; None for ``off``.

    Raises:
        ValueError: it is something else.

    """
    if text == OFF:
        return None
    try:
        return parse_tcp(text)
    except ValueError as error:
        raise ValueError(f"{error}, or {OFF}") from None


def parse_header(text: str) -> str:
    """Parse the name of a header; empty for none.

    Raises:
        ValueError: it is no name, or one that every client sends.

    """
    if text and (not _HEADER.fullmatch(text) or text.lower() in _COMMON):
        raise ValueError("expected the name of a header that only the proxy sets, such as X-Forwarded-User")
    return text


def parse_hosts(text: str) -> tuple[str, ...]:
    """Parse names of hosts with commas between them.

    Raises:
        ValueError: one is no name of a host.

    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not all(_HOST.fullmatch(name) for name in names):
        raise ValueError("expected names of hosts such as penstock.example.com, without a port")
    return tuple(name.lower() for name in names)


TRACE_ID = "{trace_id}"
"""What stands in a template of a trace's URL."""


def parse_trace_url_template(text: str) -> str:
    """Parse the template of a trace's URL; empty for none.

    Raises:
        ValueError: it is no HTTP URL, or has no place for the trace.

    """
    if text and not (_URL.fullmatch(text) and text.count(TRACE_ID) == 1):
        raise ValueError(f"expected a URL such as https://jaeger.example.com/trace/{TRACE_ID}")
    return text


def page_options(default: str) -> tuple[Option, ...]:
    """Return the options of a program whose page is at *default*."""
    return (
        Option("page", default, parse_page, "Address of the page: host:port, or off."),
        Option(
            "page-read",
            "open",
            one_of("open", "token"),
            "open: who reaches the page on loopback may read; token: only with a link that 'agentctl page' prints.",
        ),
        Option(
            "page-write",
            "no",
            one_of("yes", "no"),
            "yes: the page may change policies, pause engines and quarantine peers; on loopback with a link of 'agentctl page'.",
        ),
        Option(
            "page-user-header",
            "",
            parse_header,
            "Header in which a proxy passes the user's name. Dangerous without a proxy: every client can set it.",
        ),
        Option(
            "page-allow",
            "",
            parse_allow_list,
            "Role of a user of the page: NAME=read or NAME=write.  [default: --admin-allow]",
            many=True,
        ),
        Option(
            "page-host",
            "",
            parse_hosts,
            "Name by which browsers reach the page, besides localhost and addresses.",
            many=True,
        ),
        Option(
            "trace-url-template",
            "",
            parse_trace_url_template,
            f"URL under which your trace backend shows a trace, with {TRACE_ID}: the page links requests to it.",
        ),
    )


def page_settings(values: Mapping[str, Any], tls: AdminTls | None) -> PageSettings | None:
    """Return how the page is served; None for not at all.

    Args:
        values: of all options, by attribute.
        tls: of the admin service.

    Raises:
        ConfigError: strangers could read it, or options contradict each other.

    """
    address: TcpAddress | None = values["page"]
    header, given = values["page_user_header"], values["page_allow"]
    if address is None:
        return None
    outside = not is_loopback(address.host)
    if outside and tls is None and not header:
        raise ConfigError(
            f"--page {address} can be reached from other machines, and shows request ids and peers; keep it on 127.0.0.1 "
            "(kubectl port-forward reaches it), give the --admin-tls options, or name a proxy's header with "
            "--page-user-header"
        )
    shown = tls if outside and not header else None
    allow = given if given.roles else tls.allow if tls is not None and (header or shown) else None
    if header and allow is None:
        raise ConfigError(
            "--page-user-header is given, but no user is allowed; add --page-allow NAME=read or NAME=write"
        )
    if given.roles and not header and shown is None:
        raise ConfigError(
            "--page-allow is given, but the page on loopback knows no users; add --page-user-header, or leave it out"
        )
    # Where certificates or a proxy name the users, nobody reads without a name.
    token_reads = values["page_read"] == "token" and allow is None
    writes = values["page_write"] == "yes"
    return PageSettings(
        address, writes, header, shown, allow, values["page_host"], token_reads, values["trace_url_template"]
    )


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """How the feed for routers is served.

    Attributes:
        tls: the admin service's certificates; None on loopback.

    """

    address: TcpAddress
    tls: AdminTls | None


def feed_option() -> Option:
    """Return the option of a program that has a feed for routers."""
    return Option("feed", OFF, parse_page, "Address of the feed for routers: host:port, or off.")


def feed_settings(values: Mapping[str, Any], tls: AdminTls | None) -> FeedSettings | None:
    """Return how the feed is served; None for not at all.

    Args:
        values: of all options, by attribute.
        tls: of the admin service.

    Raises:
        ConfigError: strangers could read it.

    """
    address: TcpAddress | None = values["feed"]
    if address is None:
        return None
    if is_loopback(address.host):
        return FeedSettings(address, None)
    if tls is None:
        raise ConfigError(
            f"--feed {address} can be reached from other machines, and names engines and peers; keep it on 127.0.0.1, "
            "or give the --admin-tls options: a router then shows a certificate with a name of --admin-allow"
        )
    return FeedSettings(address, tls)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches *host*."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
