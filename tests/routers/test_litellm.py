"""LiteLLM's proxy in front of servers that are ordered out of rotation, and that answer 503."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.routers.routers import Router, client_error, litellm_config, needs_routers, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.routers.backends import Backends

pytestmark = [pytest.mark.long, needs_routers]

# It draws a server for each request: of so many, each has some.
_MANY = 60
_AN_HOUR = 3600


@contextmanager
def _proxy(backends: Backends, directory: Path, **settings: Any) -> Iterator[Router]:
    """Run one over all servers, of which one that fails is left alone for an hour unless it says for how long."""
    config = litellm_config(
        directory / "config.yaml", backends.urls, cooldown_time=_AN_HOUR, num_retries=5, **settings
    )
    arguments = ("--config", str(config))
    with running("litellm", arguments, logs=directory, ready="/health/liveliness") as router:
        yield router


def test_it_does_not_ask_for_the_readiness(backends: Backends, tmp_path: Path) -> None:
    """A server that is out of rotation gets requests as before."""
    with _proxy(backends, tmp_path) as router:
        backends.out("one")
        router.uses("one", "two", "three", count=_MANY)


def test_retry_after_is_how_long_a_server_is_left_alone(backends: Backends, tmp_path: Path) -> None:
    """Instead of the time of its configuration; others answer meanwhile."""
    with _proxy(backends, tmp_path, allowed_fails=0) as router:
        backends.fail("one", client_error(retry_after=1))
        router.uses("two", "three", count=_MANY)
        assert backends.requests("one")
        backends.fail("one", None)
        router.uses("one", "two", "three", count=_MANY)

        backends.fail("one", client_error(retry_after=None))
        router.uses("two", "three", count=_MANY)
        backends.fail("one", None)
        before = backends.counts()["one"]
        assert router.answers(_MANY).keys() == {"two", "three"}
        assert backends.counts()["one"] == before


def test_what_it_does_not_pass_on(backends: Backends, tmp_path: Path) -> None:
    """Where all servers fail, though it asks more than one, the client has our object as a text, and no header."""
    with _proxy(backends, tmp_path) as router:
        for name in backends.urls:
            backends.fail(name, client_error(retry_after=1))
        before = sum(backends.counts().values())
        answer = router.ask()
        assert (answer.status, answer.retry_after) == (503, "")
        assert "penstock" not in answer.body["error"]
        assert "penstock" in answer.body["error"]["message"]
        assert sum(backends.counts().values()) > before + 1
