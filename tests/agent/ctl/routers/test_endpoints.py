"""Which API belongs to a source: options, files, and what the feed's addresses match."""

from __future__ import annotations

import pytest
from penstock.agent.ctl.routers.endpoints import (
    MAX_ENDPOINTS,
    ApiEndpoint,
    Endpoints,
    EndpointState,
    parse_endpoint,
    parse_endpoints,
    parse_url,
)
from penstock.agent.views.router_feed import FeedEndpoint

URL = "http://10.0.3.4:8000"


def _feed(address: str, engine: str | None = None, state: str = "ok", why: str = "") -> FeedEndpoint:
    source = {"engine": engine, "address": address}
    row = {
        "reader": source,
        "source": source,
        "state": state,
        "condition": state,
        "since": "2026-11-30T12:00:00Z",
    }
    rest = {"until": None, "share": None, "why": why, "confidence": None}
    return FeedEndpoint.model_validate(
        {
            "source": source,
            "state": state,
            "agree": 1,
            "readLately": 1,
            "states": {state: 1},
            "readers": [row | rest],
        }
    )


@pytest.mark.parametrize("given", [URL, f"{URL}/", "https://prefill.example/v1", "http://[fd00::1]:8000"])
def test_addresses_of_servers(given: str) -> None:
    """A slash at the end is left out."""
    assert parse_url(given) == given.rstrip("/")


@pytest.mark.parametrize(
    "given",
    ["", "10.0.3.4:8000", "ftp://a", "http://", "http://a b", "http://a,http://b", "http://a?x", "http://u@a", "http://a:x",
     "http://a:99999", "http://a:", "http://a:/", "http://[::1]:/", "http://a\n", "http://ä", 'http://a"'],
)  # fmt: skip
def test_what_is_no_address_of_a_server(given: str) -> None:
    """Nor one with what a list, a query or a log would read otherwise."""
    with pytest.raises(ValueError, match="is not the address of a server"):
        parse_url(given)


def test_an_option() -> None:
    """The first sign of equality ends the source."""
    assert parse_endpoint(f"prefill-0/0={URL}/") == ApiEndpoint("prefill-0/0", URL)
    for wrong in ("prefill-0/0", f"={URL}", "a=b", f"a\x1b={URL}"):
        with pytest.raises(ValueError, match="is not"):
            parse_endpoint(wrong)


def test_a_file() -> None:
    """Lines, comments, and pools where there are any."""
    found = parse_endpoints(
        f"# ours\nprefill-0/0 {URL}  prefill\n\n10.0.3.5\thttp://b:1 # the other\n".expandtabs()
    )
    assert found == [ApiEndpoint("prefill-0/0", URL, "prefill"), ApiEndpoint("10.0.3.5", "http://b:1")]
    for wrong, sentence in (
        ("a", "line 1 is not"),
        ("\na b", "line 2: 'b' is not"),
        (f"a {URL} p q", "line 1 is not"),
    ):
        with pytest.raises(ValueError, match=sentence):
            parse_endpoints(wrong)


def test_contradictions() -> None:
    """One source has one API, and one API one pool; a command has a maximum."""
    Endpoints([ApiEndpoint("a", URL, "p"), ApiEndpoint("b", URL, "p"), ApiEndpoint("a", URL, "p")])
    with pytest.raises(ValueError, match="name the engines"):
        Endpoints([ApiEndpoint("a", URL), ApiEndpoint("a", "http://b:1")])
    with pytest.raises(ValueError, match="two pools"):
        Endpoints([ApiEndpoint("a", URL), ApiEndpoint("b", URL, "p")])
    with pytest.raises(ValueError, match="one command takes"):
        Endpoints(ApiEndpoint(str(number), URL) for number in range(MAX_ENDPOINTS + 1))


@pytest.mark.parametrize(
    ("source", "address", "engine"),
    [
        ("prefill-0/0", "10.0.3.4:5600", "prefill-0/0"),
        ("10.0.3.4:5600", "10.0.3.4:5600", None),
        ("10.0.3.4", "10.0.3.4:5600", "prefill-0/0"),
        ("fd00::1", "[fd00::1]:5600", None),
        ("[fd00::1]", "[fd00::1]:5600", None),
    ],
)
def test_what_a_source_matches(source: str, address: str, engine: str | None) -> None:
    """Its engine, its address, its host; nothing that only begins alike."""
    endpoints = Endpoints([ApiEndpoint(source, URL)])
    assert endpoints.url(_feed(address, engine)) == URL
    assert endpoints.url(_feed("10.0.3.40:5600", "prefill-0/01")) is None
    assert endpoints.unknown([_feed(address, engine)]) == []
    assert endpoints.unknown([_feed("10.0.3.40:5600")]) == [source]


def test_the_nearest_name_counts() -> None:
    """An engine's before its address, and that before its host."""
    given = [ApiEndpoint("10.0.3.4", "http://host:1"), ApiEndpoint("10.0.3.4:5600", "http://address:1")]
    assert Endpoints(given).url(_feed("10.0.3.4:5600", "p/0")) == "http://address:1"
    assert Endpoints(given).url(_feed("10.0.3.4:5601", "p/1")) == "http://host:1"
    given.append(ApiEndpoint("p/0", "http://engine:1"))
    assert Endpoints(given).url(_feed("10.0.3.4:5600", "p/0")) == "http://engine:1"


def test_the_worst_source_of_an_api_counts() -> None:
    """What is to be avoided before what is not, whatever comes first in the feed."""
    endpoints = Endpoints([ApiEndpoint("10.0.3.4", URL)])
    feed = [
        _feed("10.0.3.4:1", state="unreachable", why="w"),
        _feed("10.0.3.4:2", state="slow"),
        _feed("9.9.9.9:1"),
    ]
    assert endpoints.states(feed, {"unreachable"}) == {
        URL: EndpointState("unreachable", "2026-11-30T12:00:00Z", "w")
    }
    assert endpoints.states(feed, {"slow"})[URL].state == "slow"
