"""The page in each size and colour: one screen, nothing cut off sideways, nothing that a screen reader cannot use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.browser.script import crowded, opening, stream

if TYPE_CHECKING:
    from tests.support.browser.chromium import Tab
    from tests.support.browser.scripted_server import ScriptedServer

PARTS = ("#verdict", "#signals", "#peers", "#waits", "#failures", "#policy", ".time")
# Width, height, dark; 640 pixels are what 1280 are at 200 % zoom.
LOOKS = {
    "light": (1280, 800, False),
    "dark": (1280, 800, True),
    "zoom": (640, 400, False),
    "phone": (390, 844, True),
}
# What can have the focus, one of each kind.
CONTROLS = (
    "nav button",
    "#verdict summary",
    "#peers .name",
    "#peers .cell",
    ".copy button",
    "#time",
    "#waits",
)
# Whether each has an outline that is seen while it has the focus, as after the Tab key.
FOCUSED = """
return Object.fromEntries(arguments[0].map((selector) => {
  const one = document.querySelector(selector);
  one.focus({focusVisible: true});
  const {outlineStyle, outlineWidth} = getComputedStyle(one);
  return [selector, document.activeElement === one && outlineStyle !== "none" && parseFloat(outlineWidth) >= 1];
}));
"""
# Rows of a part that are seen without scrolling it.
ROWS = 3


def crowd(tab: Tab, server: ScriptedServer) -> None:
    """Open the page of a fleet in trouble."""
    server.opening = opening(crowded(stream()))
    tab.open(server.address)
    tab.until(lambda: tab.text("#peers tbody") and tab.text("#failures tbody"))


def test_first_screen_needs_no_scrolling(tab: Tab, server: ScriptedServer) -> None:
    """At 1280x800 all parts are seen with rows in them, however much there is to say."""
    crowd(tab, server)
    assert tab.js("return document.scrollingElement.scrollHeight <= innerHeight")
    assert tab.js("return document.scrollingElement.scrollWidth <= innerWidth")
    for part in PARTS:
        box = tab.js(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.top, box.bottom, box.height]",
            part,
        )
        assert box[0] >= 0, part
        assert box[1] <= 800, part
        assert box[2] >= 30, part
    for part in PARTS[2:-1]:
        seen = tab.js(
            "const end = document.querySelector(arguments[0]).getBoundingClientRect().bottom;"
            "return [...document.querySelectorAll(`${arguments[0]} tbody tr`)].filter((row) => row.getBoundingClientRect().bottom <= end).length",
            part,
        )
        assert seen >= ROWS, part


def test_each_part_counts_what_is_left_out(tab: Tab, server: ScriptedServer) -> None:
    """The server sends the worst or the first rows only."""
    crowd(tab, server)
    assert "12 more of 20 causes are left out." in tab.text("#verdict")
    assert "the worst 30 of 100" in tab.text("#peers")
    assert "the first 20 of 45" in tab.text("#policy")


def test_an_empty_list_is_one_line(tab: Tab, server: ScriptedServer) -> None:
    """It says why it is empty, and leaves its room to the others of its column."""
    messages = stream()
    messages["screen"]["waits"] |= {"rows": [], "total": 0, "unnamed": 0}
    messages["log"]["entries"] = []
    server.opening = opening(messages)
    tab.open(server.address)
    tab.until_text("#waits .empty", "No request waits.")
    tab.until_text("#failures .empty", "No failure and no change")
    height = "return document.querySelector(arguments[0]).getBoundingClientRect().height"
    assert tab.js(height, "#waits") < 40
    assert tab.js(height, "#failures") < 40
    assert tab.js(height, "#map") + tab.js(height, "#policy") > 250
    assert tab.js(height, "#peers") > 100


def test_a_number_of_a_cell_is_explained(tab: Tab, server: ScriptedServer) -> None:
    """The table says what its times are, and each cell with which it is compared."""
    server.opening = opening(stream())
    tab.open(server.address)
    tab.until_text("#peers", "a time is the p99 of waits in the last minute")
    titles = tab.js("return [...document.querySelectorAll('#peers .cell')].map((one) => one.title)")
    assert "p99 of waits in the last minute 38 ms, 40 ms in the hour before" in titles


def test_nothing_is_cut_off_sideways(tab: Tab, server: ScriptedServer) -> None:
    """The page itself is never wider than its window; tables that are scroll by themselves."""
    crowd(tab, server)
    for look, (width, height, dark) in LOOKS.items():
        tab.size(width, height, dark=dark)
        assert tab.js("return document.scrollingElement.scrollWidth") <= width, look


# The phone's is dark.
@pytest.mark.parametrize(
    "look", [pytest.param(look, marks=[pytest.mark.long] * (look in {"dark", "zoom"})) for look in LOOKS]
)
def test_axe_finds_nothing(tab: Tab, server: ScriptedServer, look: str) -> None:
    """No rule of axe-core is broken: contrast, names, landmarks, tables, what can be reached."""
    width, height, dark = LOOKS[look]
    tab.size(width, height, dark=dark)
    server.opening = opening(stream())
    tab.open(server.address)
    tab.until_text("#peers", "10.0.0.12")
    tab.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert tab.findings() == []


def test_with_forced_colours_all_is_said_and_the_focus_is_seen(tab: Tab, server: ScriptedServer) -> None:
    """Each kind of control has an outline while it has the focus; conditions and severities are words; axe finds nothing."""
    tab.size(1280, 800, forced=True)
    server.opening = opening(stream())
    tab.open(server.address)
    tab.until_text("#peers", "10.0.0.12")
    assert tab.js("return matchMedia('(forced-colors: active)').matches")
    outlines = tab.js(FOCUSED, list(CONTROLS))
    assert outlines == dict.fromkeys(CONTROLS, True)
    cells = tab.js(
        "return [...document.querySelectorAll('#peers .condition')].map((one) => [one.classList[1], one.textContent.trim()])"
    )
    assert cells
    assert all(text == "\u2013" if condition == "none" else text for condition, text in cells)
    assert tab.findings() == []


def test_axe_finds_nothing_in_what_opens(tab: Tab, server: ScriptedServer) -> None:
    """The same of the panel with a form, of the help, of a past moment and of an empty page."""
    messages = stream()
    messages["hello"]["writable"] = True
    server.opening = opening(messages)
    server.details["engine"] = detail()
    tab.open(f"{server.address}#open=engine&open-engine=a")
    tab.until_text("dialog", "Pause a")
    tab.js("document.querySelectorAll('dialog details').forEach((one) => { one.open = true; })")
    assert tab.findings() == []
    tab.open(server.address)
    tab.until_text("#peers", "10.0.0.12")
    tab.js("document.querySelector('nav button:last-child').click()")
    tab.until_text("dialog", "Help")
    assert tab.findings() == []
    tab.open(server.address)
    tab.until_text("#peers", "10.0.0.12")
    tab.js(
        "const time = document.getElementById('time'); time.value = time.min; time.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    tab.until_text(".as-of", "as of")
    assert tab.findings() == []
    server.opening = []
    tab.open(server.address)
    tab.until_text("#verdict", "Waiting")
    assert tab.findings() == []


def detail() -> dict[str, object]:
    """Return a detail with each kind of section."""
    waterfall = {
        "side": "a",
        "name": "peer",
        "start": 1000,
        "end": 3000,
        "text": "10.0.0.12:5600",
        "state": "wait",
    }
    return {
        "title": "Engine a",
        "sentences": ["It is connected."],
        "command": "agentctl describe engine a",
        "sections": [
            {
                "kind": "table",
                "title": "Facts",
                "columns": ["name", "value"],
                "rows": [
                    {
                        "cells": ["model", "m"],
                        "command": "agentctl get engines",
                        "link": {"kind": "policy", "name": "p"},
                    }
                ],
                "sentence": "",
            },
            {
                "kind": "table",
                "title": "Hooks",
                "columns": ["name"],
                "rows": [],
                "sentence": "No hook is installed.",
            },
            {
                "kind": "waterfall",
                "title": "Gates",
                "start": 1000,
                "end": 4000,
                "rows": [waterfall],
                "sentence": "Of one side.",
            },
            {"kind": "text", "title": "Manifest", "text": "- action: fail\n+ action: recompute\n  same"},
        ],
        "manifest": "kind: TransferPolicy",
        "generation": 3,
    }
