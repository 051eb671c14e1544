"""What people come for, in four interactions at most from the first screen: on recorded incidents of real engines, and an agent.

A person clicks only what is seen without scrolling, and reads only what is shown.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from selenium.webdriver import ActionChains

from tests.support.agent.agent import running_agent
from tests.support.incidents.table import INCIDENTS
from tests.support.page.addresses import page_of, token_of
from tests.support.page.bundle_page import bundle_page
from tests.support.page.sample_fleet import apply, manifest, sample_fleet
from tests.support.page.tab import ask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.browser.chromium import Tab

_MOST = 4
_FIND = """
const [selector, text] = arguments;
return [...document.querySelectorAll(selector)].find((one) => {
  const box = one.getBoundingClientRect();
  const at = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  return one.textContent.includes(text) && at && (one.contains(at) || at.contains(one));
}) ?? null;
"""


class Person:
    """Counts what they do."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.interactions = 0

    def click(self, selector: str, text: str = "") -> None:
        """Click what has a text and is seen."""
        self._count()
        self.tab.until(lambda: self.tab.js(_FIND, selector, text) is not None)
        ActionChains(self.tab.driver).click(self.tab.js(_FIND, selector, text)).perform()

    def type(self, selector: str, text: str) -> None:
        """Type into a field that is seen."""
        self.click(selector)
        ActionChains(self.tab.driver).send_keys(text).perform()

    def reads(self, *texts: str) -> None:
        """See texts, after one another, in what is shown now: the panel, else the first screen."""
        shown = "return (document.querySelector('dialog') ?? document.querySelector('main')).innerText"

        def seen() -> bool:
            rest = " ".join(self.tab.js(shown).split())
            for text in texts:
                _, found, rest = rest.partition(text)
                if not found:
                    return False
            return True

        self.tab.until(seen)

    def _count(self) -> None:
        self.interactions += 1
        assert self.interactions <= _MOST


@contextmanager
def person_at(tab: Tab, incident: str) -> Iterator[Person]:
    """Show a recorded incident to a person."""
    with bundle_page(INCIDENTS[incident]) as page:
        tab.open(page)
        tab.until_text(".causes", "")
        yield Person(tab)


def test_which_prefill_is_slow_and_since_when(tab: Tab) -> None:
    """Its cell of the table says that it is slow; a click says since when, who reads it, and how long that takes."""
    with person_at(tab, "prefill-network-flaps") as person:
        person.click("#peers button.cell", "slow")
        person.reads(
            "Peer spare/0", "slow for engine decode/0 since 21:17:43 UTC, 23s ago", "Who reads from it", "13s"
        )


def test_what_a_policy_changed(tab: Tab) -> None:
    """The policy that was set at 21:27: who, why, and field by field what it did."""
    with person_at(tab, "fail-everywhere") as person:
        person.click("#policy button.name", "no-recompute")
        person.reads(
            "by mallory@ops", "Changes", "21:27:", "mallory@ops", "INC-7", "kvLoadFailure.action: fail"
        )


def test_whose_answers_may_be_wrong(tab: Tab) -> None:
    """The verdict counts them; its cause names the requests, and the two engines whose weights differ."""
    with person_at(tab, "other-weights") as person:
        person.reads(
            "engine decode/0 and engine prefill-b/0 have loaded different weights: 3 answers may be wrong"
        )
        person.click(".causes summary")
        person.reads("requests cmpl-kv", "no handshake compares weights: nothing fails")
        person.click(".causes button", "Open this condition")
        person.reads(
            "no curve shows it, as nothing fails", "requests cmpl-kv", "Who reads from it", "decode/0"
        )


def test_whether_it_is_the_network_the_peer_or_the_queue(tab: Tab) -> None:
    """The condition's plot has the time at each gate, its evidence which of them grew, and what else it could be."""
    with person_at(tab, "prefill-network-flaps") as person:
        person.click(".causes summary")
        person.click(".causes button", "Open this condition")
        person.reads(
            "Time to first token of decode/0",
            "transfer",
            "on average 8.4s at transfer, 95ms at queue, 73ms at peer",
            "92ms at peer, 64ms at transfer, 24ms at queue",
            "What else it could be",
        )


def test_undo_the_bad_policy(tab: Tab) -> None:
    """The dry run says what its engines get back; a reason and one click do it."""
    with running_agent(["--page=127.0.0.1:0", "--page-write=yes"]) as agent, sample_fleet(agent):
        apply(agent.admin, manifest("decode-default", "fail"), author="mallory@ops")
        tab.open(f"{page_of(agent)}#token={token_of(agent.admin)}")
        person = Person(tab)
        person.click("#policy tr:has(code) button.name", "decode-default")
        person.click("dialog summary", "Undo the last change")
        person.reads(
            "Dry run: nothing has changed.", "apply by mallory@ops would be undone", "fail", "recompute"
        )
        person.type("dialog .write:not(:has(.tabs)) input[name=reason]", "INC-7")
        person.click("dialog button.confirm", "INC-7")
        tab.until_text("dialog", "kvLoadFailure.action: fail → recompute")
        shown = ask(page_of(agent), "/api/policy", name="decode-default").body
        assert "action: recompute" in shown["manifest"]
