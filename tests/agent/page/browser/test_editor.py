"""The editor of a policy: its fields and its YAML are two tabs of one manifest, and nothing of it is below the fold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.agent.page.details.policy_fields import edit_fields, manifest_text
from penstock.agent.page.wire import as_values
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.agent.page.browser.test_controls import opened
from tests.agent.page.browser.test_layout import detail
from tests.support.browser.script import stream
from tests.support.policy.policies import document

if TYPE_CHECKING:
    from penstock.agent.page.details.detail import EditField

    from tests.support.browser.chromium import Tab
    from tests.support.browser.scripted_server import ScriptedServer

MANIFEST = document(
    name="late",
    selector={"matchLabels": {"role": "decode"}},
    kvLoadFailure={"action": "auto", "maxRecomputeTokens": 4096},
    deferral={"maxTransferWait": "5s"},
)
TEXT = manifest_text(MANIFEST)
WAIT = "deferral.maxTransferWait"
TOKENS = "kvLoadFailure.maxRecomputeTokens"


def policy(fields: tuple[EditField, ...] | None = None, **other: Any) -> dict[str, Any]:
    """Return the detail of a policy."""
    found = edit_fields(MANIFEST) if fields is None else fields
    return detail() | {"manifest": TEXT, "generation": 3, "fields": as_values(found)} | other


def edit(tab: Tab, server: ScriptedServer) -> None:
    """Open the policy in a tab that may write."""
    messages = stream()
    messages["hello"]["writable"] = True
    server.details.setdefault("policy", policy())
    opened(tab, server, messages, "#open=policy&open-name=late")
    tab.until_text("dialog", "Edit late")


def type_in(tab: Tab, name: str, text: str) -> None:
    """Write over what an input has."""
    one = tab.driver.find_element(By.NAME, name)
    one.send_keys(Keys.CONTROL, "a")
    one.send_keys(text)


def click(tab: Tab, text: str) -> None:
    """Click the button with a text."""
    tab.js(
        "[...document.querySelectorAll('dialog button')].find((one) => one.textContent.trim().startsWith(arguments[0])).click()",
        text,
    )


def box(tab: Tab, selector: str) -> dict[str, float]:
    """Return where something is seen."""
    found: dict[str, float] = tab.js(
        "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector
    )
    return found


def test_the_form_is_first_and_its_button_is_seen(tab: Tab, server: ScriptedServer) -> None:
    """At 1280x800 without scrolling, in both tabs: what is set, the reason and the button; the texts come below."""
    edit(tab, server)
    for part in (f'[name="{TOKENS}"]', f'[name="{WAIT}"]', '[name="reason"]', ".write [type=submit]"):
        found = box(tab, part)
        assert 0 < found["top"] < found["bottom"] <= 800, part
    assert box(tab, ".write")["top"] < box(tab, "dialog section")["top"]
    assert tab.texts(".fields legend")[0].startswith("kvLoadFailure What happens to requests whose KV")
    assert tab.js(f"return document.getElementsByName('{TOKENS}')[0].labels[0].textContent") == (
        "maxRecomputeTokens"
    )
    about = tab.text(f'[id="about-{WAIT}"]')
    assert (
        about
        == "The wait for the end of the transfer, from its start on: a duration from 1ms to 1h such as 30s"
    )
    assert "{role: decode} in the YAML only" in tab.text('[id="selector.matchLabels"]')
    click(tab, "YAML")
    tab.until(lambda: tab.texts("textarea"))
    assert box(tab, ".write [type=submit]")["bottom"] <= 800


@pytest.mark.parametrize("yaml", [False, True])
def test_it_fits_a_phone_and_axe_finds_nothing(tab: Tab, server: ScriptedServer, *, yaml: bool) -> None:
    """No sideways scroll; each input has a name; so has the dry run."""
    tab.size(390, 844, dark=yaml)
    edit(tab, server)
    if yaml:
        click(tab, "YAML")
        tab.until(lambda: tab.texts("textarea"))
    type_in(tab, "reason", "a test")
    click(tab, "Show what")
    tab.until_text(".dry-run", "would be changed")
    assert tab.js(
        "return ['.inside', '.fields', '.write'].every((name) => { const one = document.querySelector(`dialog ${name}`); return !one || one.scrollWidth <= one.clientWidth; })"
    )
    assert tab.findings() == []


def test_fields_are_sent_by_path_and_what_is_confirmed_was_tried(tab: Tab, server: ScriptedServer) -> None:
    """The manifest goes as it came, with what was changed; an answer is seen at once, with its button."""
    server.answers["policy"] = {
        "sentences": ["Of the 3 remote loads of the last hour: failed 3 → 0."],
        "sections": [
            {
                "kind": "table",
                "title": "The last hour: recorded → with this policy",
                "columns": ["ENGINE", "LOADS", "FAILED", "RECOMPUTED", "WAITED"],
                "rows": [{"cells": ["decode/0", "3", "3 → 0", "0 → 3", "3.0s"]}],
                "sentence": "",
            }
        ],
    }
    edit(tab, server)
    type_in(tab, WAIT, "250ms")
    tab.js(
        "const one = document.getElementsByName('kvLoadFailure.action')[0]; one.value = ''; one.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    type_in(tab, "reason", "INC-9")
    click(tab, "Show what")
    tab.until_text(".dry-run", "failed 3 → 0")
    assert "decode/0 3 3 → 0" in " ".join(tab.texts(".dry-run tbody tr > *"))
    assert box(tab, ".confirm")["bottom"] <= 800
    changes = {WAIT: "250ms", "kvLoadFailure.action": ""}
    body = {"name": "late", "manifest": TEXT, "changes": changes, "generation": 3, "reason": "INC-9"}
    assert server.writes == [("policy", body | {"dryRun": True}, "page")]
    type_in(tab, WAIT, "2s")
    tab.until(lambda: tab.texts(".confirm") == [])
    click(tab, "Show what")
    tab.until_text(".confirm", "Apply late: “INC-9”")
    server.details["policy"] = policy(generation=4)
    click(tab, "Apply late")
    tab.until_text(".write", "is changed")
    changes[WAIT] = "2s"
    assert server.writes[2:] == [("policy", body | {"changes": changes, "dryRun": False}, "page")]
    tab.until_text(".tabs", "generation 4")


def test_what_the_browser_can_refuse_is_not_sent(tab: Tab, server: ScriptedServer) -> None:
    """A number out of its bounds, a duration without its unit, letters of a number; nor does the tab change."""
    edit(tab, server)
    type_in(tab, "reason", "a test")
    for name, wrong, right in ((TOKENS, "-1", "1"), (WAIT, "5", "5s"), (TOKENS, "e", "2")):
        type_in(tab, name, wrong)
        click(tab, "Show what")
        click(tab, "YAML")
        assert tab.js(f"return document.getElementsByName('{name}')[0].matches(':invalid')"), wrong
        assert tab.texts("textarea") == []
        type_in(tab, name, right)
    assert server.writes == []


def test_the_tabs_are_of_one_manifest(tab: Tab, server: ScriptedServer) -> None:
    """What is changed in one is in the other, by the server; what it cannot read stays where it is, with why."""
    edit(tab, server)
    type_in(tab, WAIT, "9s")
    server.answers["draft"] = {"manifest": TEXT.replace("5s", "9s"), "fields": []}
    click(tab, "YAML")
    tab.until(lambda: tab.texts("textarea"))
    written = tab.driver.find_element(By.NAME, "manifest")
    assert "maxTransferWait: 9s" in str(written.get_property("value"))
    assert server.writes == [
        ("draft", {"name": "late", "manifest": TEXT, "changes": {WAIT: "9s"}}, "page"),
    ]
    assert "changed, not applied" in tab.text(".tabs")
    written.send_keys("x: [")
    del server.answers["draft"]
    server.refusals["draft"] = "line 12: there is no end"
    click(tab, "Fields")
    tab.until_text(".write [role=alert]", "line 12: there is no end")
    assert str(written.get_property("value")).endswith("x: [")
    typed = str(written.get_property("value"))
    del server.refusals["draft"]
    deferral = {"deferral": {"maxTransferWait": "1m"}}
    found = edit_fields(MANIFEST | {"spec": deferral})
    server.answers["draft"] = {"manifest": typed, "fields": as_values(found)}
    click(tab, "Fields")
    tab.until(lambda: tab.texts(".fields"))
    assert server.writes[2:] == [("draft", {"name": "late", "manifest": typed, "changes": {}}, "page")]
    assert tab.js(f"return document.getElementsByName('{WAIT}')[0].value") == "1m"
    type_in(tab, "reason", "a test")
    click(tab, "Show what")
    tab.until_text(".dry-run", "would be changed")
    assert (server.writes[3][1]["manifest"], server.writes[3][1]["changes"]) == (typed, {})


def test_a_draft_is_never_put_over_a_newer_generation(tab: Tab, server: ScriptedServer) -> None:
    """Asking again follows what others did where nothing was changed; a change stays, also without an answer, and says so."""
    edit(tab, server)
    server.details["policy"] = policy(generation=4)
    click(tab, "Ask again")
    tab.until_text(".tabs", "generation 4")
    type_in(tab, WAIT, "9s")
    del server.details["policy"]
    click(tab, "Ask again")
    tab.until_text("dialog .inside > .error", "There is nothing of that name.")
    server.details["policy"] = policy(generation=5)
    click(tab, "Ask again")
    tab.until_text(".write [role=alert]", "Generation 5 is in force meanwhile; this draft is of 4")
    type_in(tab, "reason", "a test")
    click(tab, "Show what")
    tab.until_text(".dry-run", "would be changed")
    assert server.writes[0][1]["generation"] == 4
    click(tab, "Begin again with 5")
    tab.until_text(".tabs", "generation 5")
    assert tab.js(f"return document.getElementsByName('{WAIT}')[0].value") == "5s"


def test_a_policy_without_fields_is_edited_as_yaml(tab: Tab, server: ScriptedServer) -> None:
    """A server that has none for it; one whose manifest it does not send is not edited here."""
    server.details["policy"] = policy(())
    edit(tab, server)
    assert len(tab.texts("textarea")) == 1
    server.details["policy"] = policy((), manifest="")
    opened(tab, server, None, "#open=policy&open-name=other")
    tab.until_text("dialog", "It is connected.")
    assert tab.texts("textarea") == []


def test_a_panel_that_closes_loses_no_draft(tab: Tab, server: ScriptedServer) -> None:
    """It is there when the policy is opened again, until it is discarded."""
    edit(tab, server)
    type_in(tab, TOKENS, "8192")
    tab.until_text("dialog .tabs", "changed, not applied")
    click(tab, "Close")
    tab.until(lambda: not tab.texts("dialog"))
    tab.js("location.hash = '#open=policy&open-name=late'")
    tab.until_text("dialog .tabs", "changed, not applied")
    assert tab.js(f"return document.getElementsByName('{TOKENS}')[0].value") == "8192"
    click(tab, "Discard")
    tab.until_text("dialog .tabs", "generation 3")
    assert tab.js(f"return document.getElementsByName('{TOKENS}')[0].value") == "4096"
