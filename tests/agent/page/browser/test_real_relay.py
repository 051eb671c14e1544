"""The page of a real relay in the browser: the same page, of both agents, and one that is gone is named."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.support.page.pods import NAMES, Pods

if TYPE_CHECKING:
    from tests.support.browser.chromium import Tab


def test_the_page_of_a_relay_shows_both_agents_and_who_is_gone(tab: Tab) -> None:
    """Engines behind their agents' names, failures of both logs, and a banner of the agent that has ended."""
    with ExitStack() as parts:
        pods = Pods(parts)
        for name in NAMES:
            pods.fail(name, f"failed-at-{name}")
        tab.open(pods.page)
        tab.until_text("#fresh", "relay: 2 of 2 agents answered")
        tab.until(lambda: set(tab.texts("#peers thead .name")) == {f"{name}/0" for name in NAMES})
        tab.until(lambda: {f"failed-at-{name}" for name in NAMES} <= set(tab.texts("#failures .name")))
        tab.js(
            "[...document.querySelectorAll('#peers thead .name')].find((name) => name.textContent === arguments[0]).click()",
            f"{NAMES[0]}/0",
        )
        tab.until_text(".chips", f"{NAMES[0]}/0")
        assert f"failed-at-{NAMES[1]}" not in tab.text("#failures")
        pods.agents[NAMES[1]].kill()
        tab.until_text("#fresh", "relay: 1 of 2 agents answered")
        tab.until_text(".banners", f"agent {NAMES[1]} is away")
