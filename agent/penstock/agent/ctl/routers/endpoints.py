"""Which API address belongs to a source of KV blocks, as the operator says it, and what the feed says of each. Pure.

The feed has the addresses where others read blocks. Nothing is guessed from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from penstock.agent.views import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from penstock.agent.views.router_feed import FeedEndpoint

MAX_ENDPOINTS: Final = 2_000
"""Maximum endpoints of one command."""
MAX_FILE_BYTES: Final = 1 << 20
_FIELDS: Final = (2, 3)


class ApiEndpoint(NamedTuple):
    """What the operator says of a source.

    Attributes:
        source: the name of its engine, its ``host:port``, or its host.
        url: of its API, without a slash at the end.
        pool: endpoints that can take each other's requests have the same.

    """

    source: str
    url: str
    pool: str = ""


class EndpointState(NamedTuple):
    """What the feed says of an API: the worst of its sources.

    Attributes:
        state: in the feed's words.
        since: RFC 3339; None where it is not known.
        why: for people.

    """

    state: str
    since: str | None
    why: str


def parse_url(url: str) -> str:
    """Return the address of a server, without a slash at the end.

    Raises:
        ValueError: it is none.

    """
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.port != 0 and not parts.netloc.endswith(":")
    except ValueError:
        valid = False
    plain = url.isascii() and url.isprintable() and not set(url) & set(" ,?#@\"'\\")
    if not valid or not plain or parts.scheme not in ("http", "https"):
        raise ValueError(
            f"{url[:200]!r} is not the address of a server; give one such as http://10.0.3.4:8000"
        )
    return url.rstrip("/")


def parse_endpoint(given: str) -> ApiEndpoint:
    """Return the endpoint of ``SOURCE=URL``.

    Raises:
        ValueError: it is none.

    """
    source, separator, url = given.partition("=")
    if not source or not separator or not source.isprintable():
        raise ValueError(
            f"{given[:200]!r} is not SOURCE=URL; give one such as prefill-0/0=http://10.0.3.4:8000"
        )
    return ApiEndpoint(source, parse_url(url))


def parse_endpoints(content: str) -> list[ApiEndpoint]:
    """Return the endpoints of a file: lines of ``SOURCE URL [POOL]``, and comments after ``#``.

    Raises:
        ValueError: a line has something else.

    """
    found = []
    for number, line in enumerate(content.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        if len(fields) not in _FIELDS or not line.isprintable():
            raise ValueError(f"line {number} is not SOURCE URL [POOL]")
        try:
            found.append(ApiEndpoint(fields[0], parse_url(fields[1]), *fields[2:]))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return found


class Endpoints:
    """All that the operator has said.

    Attributes:
        pools: of each URL.

    """

    def __init__(self, given: Iterable[ApiEndpoint]) -> None:
        """Compare them.

        Raises:
            ValueError: two contradict each other, or there are too many.

        """
        self._urls: dict[str, str] = {}
        self.pools: dict[str, str] = {}
        for each in given:
            if self._urls.setdefault(each.source, each.url) != each.url:
                raise ValueError(
                    f"{each.source} is {self._urls[each.source]} and {each.url}; name the engines, or host:port"
                )
            if self.pools.setdefault(each.url, each.pool) != each.pool:
                raise ValueError(f"{each.url} is in two pools; keep one")
        if len(self._urls) > MAX_ENDPOINTS:
            raise ValueError(f"there are {len(self._urls)} endpoints; one command takes {MAX_ENDPOINTS}")

    def url(self, found: FeedEndpoint) -> str | None:
        """Return the URL of a source: by its engine, its address or its host, in this order; None for none."""
        return next((self._urls[name] for name in _names(found) if name in self._urls), None)

    def unknown(self, feed: Sequence[FeedEndpoint]) -> list[str]:
        """Return the sources that the feed does not have."""
        there = {name for each in feed for name in _names(each)}
        return [source for source in self._urls if source not in there]

    def states(self, feed: Sequence[FeedEndpoint], avoid: AbstractSet[str]) -> Mapping[str, EndpointState]:
        """Return what *feed*, the worst first, says of each URL; what is to be avoided counts before all else."""
        found: dict[str, EndpointState] = {}
        for each in sorted(feed, key=lambda one: one.state not in avoid):
            url = self.url(each)
            if url is not None and url not in found:
                found[url] = state_of(each)
        return found


def state_of(found: FeedEndpoint) -> EndpointState:
    """Return what the feed says of one source: since when and why as its worst reader of that state has it."""
    row = next((each for each in found.readers if each.state == found.state), None)
    return EndpointState(found.state, None if row is None else row.since, "" if row is None else row.why)


def words(found: FeedEndpoint) -> str:
    """Return the name of a source, for a sentence."""
    address = text.printable(found.source.address or text.NONE)
    return f"{found.source.engine} ({address})" if found.source.engine else address


def _names(found: FeedEndpoint) -> list[str]:
    address = found.source.address or ""
    host = address.rpartition(":")[0]
    return [name for name in (found.source.engine, address, host, host.strip("[]")) if name]
