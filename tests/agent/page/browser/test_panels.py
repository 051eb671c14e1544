"""The panels of a peer, an engine and a condition: plots and minutes that go on, what is folded, and the way from the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.agent.page.browser.test_controls import focus, opened, press, tab_to
from tests.support.browser.script import ENGINE, PEER, now, signals, stream

if TYPE_CHECKING:
    from tests.support.browser.chromium import Tab
    from tests.support.browser.scripted_server import ScriptedServer

_HOSTILE = "<img src=x onerror=document.title='hit'>"
_CONDITION = f"#open=condition&open-engine={ENGINE.replace('/', '%2F')}&open-peer={PEER.replace(':', '%3A')}&open-name=peer_refuses"
_SIDEWAYS = (
    "const found = document.querySelector('dialog .inside'); return found.scrollWidth > found.clientWidth"
)


def panel(*sections: dict[str, Any]) -> dict[str, Any]:
    """Return a detail with sections that stand open, and a text that is folded."""
    text = {"kind": "text", "title": "As the engine sees it", "text": "Status: connected", "folded": True}
    return {
        "title": f"Peer {PEER}",
        "sentences": ["It is failing since 10:00:00 UTC, 5m ago", "All 3 engines are in trouble with it"],
        "command": f"agentctl describe peer {PEER}",
        "sections": [*sections, text],
    }


def plot(name: str, engine: str = ENGINE, title: str = "Time to first token") -> dict[str, Any]:
    """Return the section of a plot."""
    return {"kind": "plot", "title": title, "plot": name, "engine": engine, "sentence": "the layer grows"}


def minutes(engine: str = ENGINE, peer: str = PEER) -> dict[str, Any]:
    """Return the section of the minutes of a pair."""
    return {
        "kind": "minutes",
        "title": "Failures and deferrals",
        "engine": engine,
        "peer": peer,
        "sentence": "",
    }


def table(**values: Any) -> dict[str, Any]:
    """Return the section of who has the peer."""
    link = {"kind": "peer", "engine": "serving/decode-1/0", "peer": PEER, "id": "", "name": ""}
    rows = [{"cells": ["serving/decode-1/0", "hanging", "not known"], "command": "", "link": link}]
    columns = ["ENGINE", "NOW", "SINCE"]
    return {
        "kind": "table",
        "title": "Who has it",
        "columns": columns,
        "rows": rows,
        "sentence": "",
        **values,
    }


def order(tab: Tab) -> list[str]:
    """Return what stands in the panel, one below the other."""
    return list(
        tab.js(
            "return [...document.querySelectorAll('dialog .inside > :not(header)')]"
            ".map((one) => (one.querySelector('h3, summary') ?? one).textContent.trim().split('\\n')[0])"
        )
    )


def test_a_panel_is_a_sentence_first_and_all_that_is_known_last(tab: Tab, server: ScriptedServer) -> None:
    """Between them its minutes, its tables and the ways on; a row opens the same peer of another engine."""
    server.details["peer"] = panel(minutes(), table())
    opened(tab, server, fragment=f"#open=peer&open-engine={ENGINE}&open-peer={PEER}")
    tab.until_text("dialog", "It is failing since")
    stands = order(tab)
    assert stands[:4] == [
        "It is failing since 10:00:00 UTC, 5m ago",
        "All 3 engines are in trouble with it",
        "Failures and deferrals",
        "Who has it",
    ]
    assert stands[4].startswith("agentctl describe peer")
    assert stands[-1] == "All that is known"
    assert tab.texts("dialog details[open]") == []
    assert tab.text("dialog details pre").strip() == "Status: connected"
    tab.js("document.querySelector('dialog tbody .name').click()")
    tab.until(lambda: "open-engine=serving%2Fdecode-1%2F0" in tab.driver.current_url)


def test_minutes_are_counted_while_the_panel_is_open(tab: Tab, server: ScriptedServer) -> None:
    """Of the pair, or of all that a name left empty stands for; each row of bars is a sentence, too."""
    server.details["peer"] = panel(minutes())
    messages = stream()
    opened(tab, server, messages, fragment=f"#open=peer&open-engine={ENGINE}&open-peer={PEER}")
    tab.until_text("dialog .minutes", "failures: 12 in 15 minutes, 8 of them in the minute")
    first, second = tab.texts("dialog .minutes p")[:2]
    assert second.startswith("deferrals: 3 in 15 minutes, 2 of them in the minute ")
    assert tab.js(
        "return [...document.querySelectorAll('dialog .minutes svg')].map((one) => one.ariaLabel)"
    ) == [
        first,
        second,
    ]
    assert tab.js("return document.querySelectorAll('dialog .minutes svg:first-of-type rect').length") > 0
    entry = messages["log"]["entries"][1]
    more = [entry | {"position": f"{2000 + number}/0", "time": now()} for number in range(20)]
    server.say(
        "log", {"entries": [*more, more[0] | {"position": "3000/0", "peer": "10.0.0.99:5600"}]}, "3000"
    )
    tab.until_text("dialog .minutes", "failures: 3")
    assert "failures: 33" not in tab.text("dialog .minutes")


def test_a_plot_is_of_its_engine_and_is_read_by_keyboard(tab: Tab, server: ScriptedServer) -> None:
    """It asks for the signals of the engine, has its values and its table, and a key tells the slot."""
    server.details["engine"] = panel(plot("ttft"), plot("queue", title="Requests in the engine"))
    server.details["signals"] = signals(engine=ENGINE, engines=1)
    opened(tab, server, fragment=f"#open=engine&open-engine={ENGINE}")
    tab.until(lambda: len(tab.texts("dialog .plots canvas")) == 2)
    assert tab.texts("dialog h3")[:2] == ["Time to first token", "Requests in the engine"]
    assert "p99" in tab.text("dialog .legend")
    assert "not known" not in tab.text("dialog .legend")
    tab.js("document.querySelector('dialog .plot').focus()")
    press(tab, Keys.HOME)
    tab.until(lambda: "now" not in tab.js("return document.querySelector('dialog .plot').ariaValueText"))
    tab.js("document.querySelector('dialog .numbers').open = true")
    tab.until(lambda: len(tab.texts("dialog .numbers tbody tr")) > 100)


def test_what_a_plot_does_not_know_it_says(tab: Tab, server: ScriptedServer) -> None:
    """An engine whose signals the server refuses, and a fleet without any."""
    server.details["condition"] = panel(plot("held"))
    opened(tab, server, fragment=_CONDITION)
    tab.until_text("dialog section .empty", "There is nothing of that name.")
    server.details["condition"] = panel(plot("held", engine=""))
    messages = stream()
    messages["signals"] = signals(slots=0)
    opened(tab, server, messages, fragment=_CONDITION)
    tab.until_text("dialog section .empty", "Nothing is known of the last 15 minutes.")
    messages = stream()
    messages["signals"] = signals(held=[None] * 180)
    opened(tab, server, messages, fragment=_CONDITION)
    tab.until_text("dialog section .empty", "this curve cannot show it")
    assert "the layer grows" not in tab.text("dialog")


def test_a_cause_of_the_verdict_opens_its_panel_by_keyboard(tab: Tab, server: ScriptedServer) -> None:
    """Its summary unfolds as before, with its filters; the address brings the panel back."""
    server.details["condition"] = panel(minutes())
    opened(tab, server)
    tab.js("document.querySelector('#verdict summary').focus()")
    press(tab, Keys.ENTER)
    tab.until(lambda: tab.texts("#verdict details[open]"))
    assert "Filter by:" in tab.text("#verdict details")
    tab_to(tab, "Open this condition")
    press(tab, Keys.ENTER)
    tab.until_text("dialog", "It is failing since")
    assert tab.driver.current_url.endswith(_CONDITION)
    assert (
        tab.js("return document.querySelector('dialog').ariaLabel")
        == f"condition peer_refuses {PEER} {ENGINE}"
    )
    press(tab, Keys.ESCAPE)
    tab.until(lambda: not tab.texts("dialog"))
    assert focus(tab).strip() == "Open this condition"
    opened(tab, server, fragment=_CONDITION)
    tab.until_text("dialog", "It is failing since")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_panels_are_usable_and_as_wide_as_the_screen(
    tab: Tab, server: ScriptedServer, width: int, dark: bool
) -> None:
    """With hostile names, which are text; axe-core finds nothing."""
    tab.size(width, 800, dark=dark)
    wide = ["x" * 60, _HOSTILE, "not known"]
    rows = [{"cells": wide, "command": "agentctl get peers", "link": None}]
    server.details["condition"] = panel(
        plot("ttft", title=f"Time to first token of {_HOSTILE}"),
        minutes(),
        table(rows=rows, sentence="4 more"),
    ) | {"title": _HOSTILE, "sentences": [_HOSTILE * 3]}
    server.details["signals"] = signals(engine=ENGINE, engines=1)
    opened(tab, server, fragment=_CONDITION)
    tab.until(lambda: tab.texts("dialog .plots canvas"))
    tab.js("document.querySelectorAll('dialog details').forEach((one) => { one.open = true; })")
    assert tab.findings() == []
    assert not tab.js(_SIDEWAYS)
    assert tab.js("return document.scrollingElement.scrollWidth") <= width
    assert tab.driver.title == "Penstock"
    tab.size(1280, 800)
