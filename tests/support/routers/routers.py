"""Routers of other projects as processes: ``make setup-routers``."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from demo.common.client import Answer, fetch, post_json
from demo.common.processes import Child, free_port
from demo.common.steps import until
from demo.servers import LOOPBACK, ROOT
from tests.support.routers.backends import READY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.support.routers.backends import Backends

HOME = ROOT / ".cache" / "routers"

needs_routers = pytest.mark.skipif(
    not (HOME / ".stamp").exists(),
    reason=f"there is no {HOME}; make setup-routers installs vllm-router, sglang-router and LiteLLM",
)

_ASKS_READINESS = (
    *("--health-check-endpoint", READY, "--health-check-interval-secs", "1"),
    *("--health-failure-threshold", "1", "--health-success-threshold", "1"),
)

# LiteLLM does not start without one; the others do not look at it.
_KEY = "sk-of-the-test"


class Router:
    """A running router.

    Attributes:
        url: of its API.

    """

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, prompt: str = "a") -> Answer:
        """Send it one request, with a greedy answer."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0}
        headers = {"Authorization": f"Bearer {_KEY}"}
        return post_json(f"{self.url}/v1/completions", body, headers=headers, timeout=60.0)

    def answers(self, count: int = 12) -> Counter[str]:
        """Send it some requests, one after the other; return how many of them each server has answered, and the errors by status."""
        found: Counter[str] = Counter()
        for _ in range(count):
            answer = self.ask()
            found[answer.completion if answer.status == 200 else str(answer.status)] += 1
        return found

    def uses(self, *names: str, count: int = 12) -> None:
        """Wait until the servers of these names, and no others, answer *count* requests in a row, and see it once more.

        An error is named by its status.
        """
        wanted = set(names)
        seen: Counter[str] = Counter()

        def look() -> bool:
            nonlocal seen
            seen = self.answers(count)
            return seen.keys() == wanted

        until(look, lambda: f"the router uses {dict(seen)}, not {wanted}")
        assert self.answers(count).keys() == wanted

    def prefills(self, backends: Backends, *names: str) -> None:
        """Wait until the servers of these names, and no other, prefill, and ``three`` decodes; see it once more."""

        def look() -> bool:
            counts = backends.counts()
            answered = self.answers(6)
            after = backends.counts()
            used = {name for name in ("one", "two") if after[name] > counts[name]}
            return answered.keys() == {"three"} and used == set(names)

        until(look, f"{' and '.join(names)} do not prefill alone")
        assert look()


@contextmanager
def running(
    program: str, arguments: Sequence[str], *, logs: Path, ready: str = "/health"
) -> Iterator[Router]:
    """Run a program of the routers' environment on a port of its own until the end of the block."""
    port = free_port()
    child = Child(
        program,
        [str(HOME / "bin" / program), *arguments, "--host", LOOPBACK, "--port", str(port)],
        env={**os.environ, "PYTHONPATH": "", "NO_PROXY": "*"},
        cwd=logs,
        log=logs / f"{program}.log",
    )
    router = Router(f"http://{LOOPBACK}:{port}")
    try:
        child.wait_until(lambda: serves(router.url + ready), what="ready")
        yield router
    finally:
        child.stop()


def asking_and_taking_turns() -> tuple[str, ...]:
    """Return options of vllm-router and sglang-router: servers that are in rotation take turns."""
    return (*_ASKS_READINESS, "--policy", "round_robin", "--prometheus-port", str(free_port()))


def litellm_config(path: Path, urls: Mapping[str, str], **router_settings: Any) -> Path:
    """Write LiteLLM's configuration: one model, served by each of *urls*."""
    deployments = [
        {
            "model_name": "tiny",
            "litellm_params": {"model": "hosted_vllm/tiny", "api_base": f"{url}/v1", "api_key": "none"},
        }
        for url in urls.values()
    ]
    # YAML has all of JSON.
    config = {
        "model_list": deployments,
        "router_settings": router_settings,
        "general_settings": {"master_key": _KEY},
    }
    path.write_text(json.dumps(config))
    return path


def client_error(retry_after: int | None) -> dict[str, Any]:
    """Return what a server answers with 503: the example of the contract, with this header or without it."""
    text = (ROOT / "docs" / "reference" / "client-errors.md").read_text()
    body = json.loads(text.partition("```json\n")[2].partition("```")[0])
    return {"body": body, "headers": {} if retry_after is None else {"Retry-After": str(retry_after)}}


def serves(url: str) -> bool:
    """Return whether it answers with 200."""
    try:
        return fetch(url).status == 200
    except OSError:
        return False
