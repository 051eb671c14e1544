"""Real engines behind routers and a load balancer: under traffic one is ordered out of rotation and back, and no request fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.common.steps import until
from tests.support.routers.engines import DECODES, Engines, Stream, running_engines
from tests.support.routers.haproxy import balancing, needs_haproxy
from tests.support.routers.routers import Router, asking_and_taking_turns, needs_routers, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.engine]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Run a prefill and two decode servers."""
    with running_engines(tmp_path_factory.mktemp("engines")) as found:
        yield found


@pytest.fixture
def engines(servers: Engines) -> Iterator[Engines]:
    """Return them with all in rotation."""
    yield servers
    servers.eject("off")


def _out_and_back(engines: Engines, router: Router, *beside: str) -> None:
    """Order a decode server out and back while clients ask *router*, which uses it, the other one, and those *beside* them.

    Each request has the answer of one decode server; the last ones are what a decode server says to them itself.
    """
    before = _decoded(engines)
    with Stream(engines, router).running() as stream:
        stream.uses("one", "two", *beside)
        ejected = engines.eject("one/0", "--for", "10m", "--reason", "test")
        assert ejected.code == 0, ejected.output
        stream.uses("two", *beside)
        refused = engines.eject("two/0", "--for", "10m")
        assert refused.code != 0
        assert "--even-last" in refused.output
        back = engines.eject("off", "one/0")
        assert back.code == 0, back.output
        stream.uses("one", "two", *beside)
    assert stream.failures == []
    until(
        lambda: _decoded(engines) - before == len(stream.answers),
        lambda: f"{len(stream.answers)} answers, {_decoded(engines) - before:g} of them by vLLM's metric",
    )
    for prompt, text in list(stream.answers.items())[-5:]:
        assert text == Router(engines.urls["two"]).ask(prompt).completion


def _decoded(engines: Engines) -> float:
    served = engines.served()
    return sum(served[name] for name in DECODES)


@needs_haproxy
def test_haproxy(engines: Engines, tmp_path: Path) -> None:
    """In front of two servers."""
    urls = {name: engines.urls[name] for name in DECODES}
    with balancing(urls, directory=tmp_path) as balancer:
        _out_and_back(engines, balancer)


@needs_routers
def test_vllm_router(engines: Engines, tmp_path: Path) -> None:
    """In front of two servers that it takes for alike."""
    arguments = (*asking_and_taking_turns(), "--worker-urls", *(engines.urls[name] for name in DECODES))
    with running("vllm-router", arguments, logs=tmp_path) as router:
        _out_and_back(engines, router)


@needs_routers
def test_vllm_router_prefill_and_decode(engines: Engines, tmp_path: Path) -> None:
    """In front of a prefill and two decode servers, which read over NIXL."""
    arguments = (*asking_and_taking_turns(), "--vllm-pd-disaggregation", "--prefill", engines.urls["prefill"])
    decodes = [word for name in DECODES for word in ("--decode", engines.urls[name])]
    before = {name: engines.read(name) for name in DECODES}
    with running("vllm-router", (*arguments, *decodes), logs=tmp_path) as router:
        _out_and_back(engines, router, "prefill")
    until(lambda: all(engines.read(name) > before[name] for name in DECODES), "not both have read")
