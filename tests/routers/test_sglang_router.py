"""sglang-router in front of servers that are ordered out of rotation, and that answer 503."""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.ctl.routers.calls import RouterCalls
from penstock.agent.ctl.routers.endpoints import EndpointState

from demo.common.client import fetch, post_json
from demo.common.processes import free_port
from tests.support.routers.routers import ASKS_READINESS, Router, client_error, needs_routers, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.routers.backends import Backends

pytestmark = [pytest.mark.long, needs_routers]


@pytest.fixture
def router(backends: Backends, tmp_path: Path) -> Iterator[Router]:
    """Run one over all servers."""
    arguments = ("launch", *ASKS_READINESS, "--policy", "round_robin", "--prometheus-port", str(free_port()))
    urls = ("--worker-urls", *backends.urls.values())
    with running("sglang-router", (*arguments, *urls), logs=tmp_path) as found:
        yield found


def _workers(router: Router) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fetch(f"{router.url}/workers").body["workers"]
    return found


def test_out_of_rotation_and_back(backends: Backends, router: Router) -> None:
    """Requests go to the others while the order lasts; with all servers out there is nobody left."""
    router.uses("one", "two", "three")
    backends.out("one")
    router.uses("two", "three")
    unhealthy = [each["url"] for each in _workers(router) if not each["is_healthy"]]
    assert unhealthy == [backends.urls["one"]]
    backends.back()
    router.uses("one", "two", "three")
    for name in backends.urls:
        backends.out(name)
    router.uses("503")
    backends.back()
    router.uses("one", "two", "three")


def test_a_503_of_ours(backends: Backends, router: Router) -> None:
    """Another server is asked, and with none left the client has our body and header."""
    failure = client_error(retry_after=1)
    backends.fail("one", failure)
    assert router.answers().keys() == {"two", "three"}
    assert backends.requests("one")
    for name in backends.urls:
        backends.fail(name, failure)
    answer = router.ask()
    assert (answer.status, answer.body, answer.retry_after) == (503, failure["body"], "1")


def test_workers_are_removed_and_added(backends: Backends, router: Router) -> None:
    """By its id, which is a new one when it is back."""
    url = backends.urls["one"]
    router.uses("one", "two", "three")
    (worker,) = [each for each in _workers(router) if each["url"] == url]
    removal = urllib.request.Request(f"{router.url}/workers/{worker['id']}", method="DELETE")
    with urllib.request.urlopen(removal, timeout=60) as answer:
        assert answer.status == 202
    router.uses("two", "three")
    assert post_json(f"{router.url}/workers", {"url": url}).status == 202
    router.uses("one", "two", "three")
    (again,) = [each for each in _workers(router) if each["url"] == url]
    assert again["id"] != worker["id"]


def test_agentctl_takes_a_server_out_and_back(backends: Backends, router: Router) -> None:
    """Through the calls of 'agentctl routers'."""
    router.uses("one", "two", "three")
    calls = RouterCalls(router.url, "sglang-router")
    assert calls.apply({backends.urls["one"]: EndpointState("failing", None, "")}, 0.0) == []
    router.uses("two", "three")
    assert calls.restore(1.0) == []
    router.uses("one", "two", "three")
