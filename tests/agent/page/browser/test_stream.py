"""The page and its stream: what is missed, what comes twice, how old it is, and what engines say as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.browser.script import now, opening, stream

if TYPE_CHECKING:
    from tests.support.browser.chromium import Tab
    from tests.support.browser.scripted_server import ScriptedServer

HOSTILE = 1000
_AT_ONCE = 50
_SHAPES = (
    "<img src=x onerror=document.title='hit'>", "<script>document.title='hit'</script>", "</script><script>document.title='hit'</script>",
    "<svg onload=document.title='hit'>", "javascript:document.title='hit'", "\"><iframe srcdoc='<script>parent.document.title=1</script>'>",
    "' onmouseover='document.title=1", "</td></tr></table><h1>all is well</h1>", "${document.title='hit'}", "{{constructor.constructor('alert(1)')()}}",
    "<style>*{display:none}</style>", "<base href=//elsewhere>", "<!--", "]]>", "&lt;b&gt;&amp;&#0;", "\u202egnp.exe", "\u0000\u0007\u001b[31m",
    "\U0001f469\u200d\U0001f680", "a" * 5000, "\n\n\r\t", "../../etc/passwd", "%3Cscript%3E", "<a href=data:text/html,x>click</a>",
    "__proto__", "constructor",
)  # fmt: skip


def failures(tab: Tab) -> list[str]:
    """Return the sentences of the log that the page shows, the newest first."""
    return tab.texts("#failures tbody td:nth-child(2)")


def until_newest(tab: Tab, sentences: list[str]) -> None:
    """Wait until the log begins with some sentences."""
    tab.until(lambda: failures(tab)[: len(sentences)] == sentences)


def entry(number: int, sentence: str, **parts: Any) -> dict[str, Any]:
    """Return one entry of the log."""
    one: dict[str, Any] = stream()["log"]["entries"][1]
    return (
        one
        | {"position": f"{number}/0", "time": now(), "sentence": sentence, "request": "", "peer": ""}
        | parts
    )


def test_a_server_that_was_away_leaves_no_gap(tab: Tab, server: ScriptedServer) -> None:
    """While it is away the page says since when; afterwards nothing is missed and nothing is there twice."""
    server.opening = opening(stream())
    tab.open(server.address)
    tab.until_text("#fresh", "old")
    server.stop()
    tab.until_text("#fresh", "disconnected since")
    assert "data" in tab.text("#fresh")
    before = failures(tab)
    again = stream()
    server.opening = [
        *opening(again)[:2],
        ("log", {"entries": [entry(1044, "what happened meanwhile")]}, "1045"),
        *opening(again)[3:],
    ]
    server.start()
    tab.until(lambda: failures(tab)[0] == "what happened meanwhile")
    assert failures(tab)[1:] == before
    tab.until(lambda: "disconnected" not in tab.text("#fresh"))
    # By the browser itself, or by the page once the browser had given up.
    assert server.streams[-1] in {("", "1044"), ("1044", ""), ("1044", "1044")}
    last = entry(1045, "and once more")
    server.say("log", {"entries": [last]}, "1046")
    server.say("log", {"entries": [last, entry(1046, "the end")]}, "1047")
    tab.until(lambda: failures(tab)[0] == "the end")
    assert failures(tab)[:3] == ["the end", "and once more", "what happened meanwhile"]


def test_a_goodbye_is_said_and_the_page_comes_back(tab: Tab, server: ScriptedServer) -> None:
    """After ``bye`` the page tells why and connects again after the last position."""
    server.opening = opening(stream())
    tab.open(server.address)
    tab.until_text("#fresh", "old")
    server.say("bye", {"reason": "slow", "sentence": "This tab does not read."})
    tab.until_text("#fresh", "This tab does not read.")
    tab.until(lambda: len(server.streams) == 2)
    assert server.streams[-1] == ("1044", "")


def test_what_engines_say_is_text(tab: Tab, server: ScriptedServer) -> None:
    """A thousand strings that would be markup, code or control characters elsewhere are shown as they are."""
    server.opening = opening(stream())
    tab.open(server.address)
    tab.until_text("#fresh", "old")
    elements = "return document.querySelectorAll('img, iframe, base, style, h1, a, script').length"
    before = tab.js(elements)
    strings = [f"{number} {_SHAPES[number % len(_SHAPES)]}" for number in range(HOSTILE)]
    for start in range(0, HOSTILE, _AT_ONCE):
        batch = strings[start : start + _AT_ONCE]
        server.say(
            "log",
            {"entries": [entry(2000 + start + place, text, engine=text) for place, text in enumerate(batch)]},
            str(2000 + start),
        )
        until_newest(tab, list(reversed(batch)))
    screen = stream()["screen"]
    for place, text in enumerate(_SHAPES):
        row = screen["peers"]["rows"][0]
        screen["peers"]["rows"].append(
            row | {"peer": text, "cells": [cell | {"text": text, "reason": text} for cell in row["cells"]]}
        )
        screen["banners"].append(
            {"kind": "stall", "severity": "error", "sentence": f"{place} {text}", "command": text}
        )
        screen["waits"]["rows"].append(
            screen["waits"]["rows"][0] | {"request": text, "sentence": text, "command": text}
        )
    screen["verdict"]["sentence"] = "<b>bold</b>"
    server.say("screen", screen)
    tab.until_text("#verdict", "<b>bold</b>")
    assert set(_SHAPES) <= set(tab.texts("#peers tbody th .name"))
    assert tab.js(elements) == before
    assert tab.js("return document.title") == "Penstock"


def test_the_live_region_says_a_verdict_once(tab: Tab, server: ScriptedServer) -> None:
    """A screen reader hears the verdict when it changes, not each second."""
    server.opening = opening(stream())
    tab.open(server.address)
    tab.until_text("#said", "refuses")
    tab.js(
        "window.changes = 0; new MutationObserver((seen) => { window.changes += seen.length; })"
        ".observe(document.getElementById('said'), {characterData: true, childList: true, subtree: true})"
    )
    for number in range(3):
        screen = stream()["screen"]
        screen["banners"][0]["sentence"] = f"round {number}"
        server.say("screen", screen)
        tab.until_text(".banners", f"round {number}")
    assert tab.js("return window.changes") == 0
    screen = stream()["screen"]
    screen["verdict"]["sentence"] = "nothing is wrong"
    server.say("screen", screen)
    tab.until_text("#said", "nothing is wrong")
    assert tab.js("return window.changes") == 1
