"""The fleet map on the first screen: drawn, clicked, read as a table, filtered, of the past, of many engines, and narrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.browser.script import crowded, fleet_map, now, opening, stream

if TYPE_CHECKING:
    from tests.support.browser.chromium import Tab
    from tests.support.browser.scripted_server import ScriptedServer

_HOSTILE = "<img src=x onerror=document.title='hit'>"


def shown(tab: Tab, server: ScriptedServer, sent: dict[str, Any] | None = None, fragment: str = "") -> None:
    """Open the page of a server that sends a map."""
    server.opening = opening(stream() | {"map": sent or fleet_map()})
    tab.open(server.address + fragment)
    tab.until(lambda: tab.texts("#map button.node"))


def edges(tab: Tab, kind: str = "") -> int:
    """Count the edges that are drawn, of one kind, such as ``.error`` or ``.dim``."""
    return int(tab.js("return document.querySelectorAll(`#map .edge${arguments[0]}`).length", kind))


def click(tab: Tab, selector: str, text: str) -> None:
    """Click what has a text."""
    tab.js(
        "[...document.querySelectorAll(arguments[0])].find((one) => one.textContent.includes(arguments[1]))"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))",
        selector,
        text,
    )


def chips(tab: Tab) -> str:
    """Return what the page is filtered by."""
    return "; ".join(" ".join(chip.split()[:-1]) for chip in tab.texts(".chip"))


def test_edges_are_as_wide_as_they_move_bytes_and_say_their_state(tab: Tab, server: ScriptedServer) -> None:
    """By colour and pattern, and in words; the worst are told in the title."""
    shown(tab, server)
    assert (edges(tab), edges(tab, ".error"), edges(tab, ".ok")) == (8, 4, 4)
    look = "const path = document.querySelector(arguments[0]).querySelectorAll('path')[1]; return [path.getAttribute('stroke-width'), path.getAttribute('stroke-dasharray')]"
    assert tab.js(look, "#map .edge.error") == ["1", "10 4"]
    assert tab.js(look, "#map .edge.ok") == ["4.1", ""]
    assert "8 edges, 4 in trouble" in tab.text("#map header")
    assert "prefill-0/0 in trouble" in " ".join(tab.texts("#map button.node")[0].split())
    assert tab.findings() == []


def test_a_click_on_a_node_filters_everything(tab: Tab, server: ScriptedServer) -> None:
    """The address has it; a second click takes it away."""
    sent = fleet_map()
    sent["columns"][0]["boxes"][0]["peers"] = ["10.0.0.12:5600"]
    shown(tab, server, sent)
    assert len(tab.texts("#peers tbody tr")) == 2
    click(tab, "#map button.node", "prefill-0/0")
    tab.until(lambda: chips(tab) == "node prefill-0/0")
    assert tab.texts("#peers tbody th .name") == ["10.0.0.12:5600"]
    assert edges(tab, ".dim") == 4
    assert "node=prefill-0" in tab.js("return location.hash")
    click(tab, "#map button.node", "prefill-0/0")
    tab.until(lambda: chips(tab) == "")
    assert edges(tab, ".dim") == 0


def test_the_address_brings_the_filter_back(tab: Tab, server: ScriptedServer) -> None:
    """A node that is not on the map hides nothing."""
    shown(tab, server, fragment="#node=prefill-0/0")
    assert chips(tab) == "node prefill-0/0"
    assert edges(tab, ".dim") == 4
    tab.open(f"{server.address}#node=gone")
    tab.until(lambda: tab.texts("#map button.node"))
    assert len(tab.texts("#peers tbody tr")) == 2
    assert edges(tab, ".dim") == 0


def test_a_click_on_an_edge_filters_by_both_its_ends(tab: Tab, server: ScriptedServer) -> None:
    """In the picture, and by its row of the table, which the keyboard reaches."""
    shown(tab, server)
    click(tab, "#map .edge title", "prefill-1/0 → decode-2/0")
    tab.until(lambda: chips(tab) == "engine decode-2/0; peer 10.0.7.1:5600")
    assert edges(tab, ".dim") == 7
    tab.js("document.querySelector('#map summary').click()")
    tab.until(lambda: len(tab.texts("#map tbody tr")) == 8)
    assert tab.texts("#map tbody tr:first-child td")[:3] == ["decode-0/0", "kv", "failing"]
    tab.js("document.querySelector('#map tbody .name').focus(); document.activeElement.click()")
    tab.until(lambda: chips(tab) == "engine decode-0/0; peer 10.0.7.0:5600")
    assert tab.findings() == []


def test_names_are_text(tab: Tab, server: ScriptedServer) -> None:
    """Whatever an engine calls itself."""
    sent = fleet_map(1, 1)
    box = sent["columns"][0]["boxes"][0]
    sent["edges"][0] |= {"source": _HOSTILE, "words": [_HOSTILE], "cells": [_HOSTILE] * 8}
    box |= {"name": _HOSTILE, "notes": [_HOSTILE], "engines": [_HOSTILE]}
    shown(tab, server, sent)
    click(tab, "#map button.node", _HOSTILE)
    tab.until(lambda: _HOSTILE in chips(tab))
    assert tab.js("return document.querySelectorAll('img').length") == 0
    assert tab.js("return document.title") == "Penstock"


def test_the_slider_brings_the_map_of_that_time(tab: Tab, server: ScriptedServer) -> None:
    """A tab has those that it was told; of the time before it says that it is not known."""
    shown(tab, server, fleet_map(1, 1, now() - 120_000))
    server.say("map", fleet_map(2, 2))
    tab.until(lambda: len(tab.texts("#map button.node")) == 4)
    slide = "const one = document.querySelector('.time input'); one.value = Number(one.max) - arguments[0]; one.dispatchEvent(new Event('input', {bubbles: true}))"
    tab.js(slide, 60_000)
    tab.until(lambda: len(tab.texts("#map button.node")) == 2)
    assert "of " in tab.text("#map header .note")
    tab.js(slide, 600_000)
    tab.until_text("#map", "The map of that time is not known to this tab.")


def test_many_nodes_are_readable(tab: Tab, server: ScriptedServer) -> None:
    """Twelve rows and forty edges: no box hides another, and the picture scrolls in its own part."""
    shown(tab, server, fleet_map(12, 12) | {"edges": fleet_map(4, 10)["edges"]})
    hidden = tab.js(
        "const boxes = [...document.querySelectorAll('#map button.node')].map((one) => one.getBoundingClientRect());"
        "return boxes.filter((one, index) => boxes.some((other, place) => place !== index && one.left < other.right &&"
        " other.left < one.right && one.top < other.bottom && other.top < one.bottom)).length"
    )
    assert hidden == 0
    assert edges(tab) == 40
    assert tab.js("return document.scrollingElement.scrollHeight <= innerHeight")


def test_many_rows_beside_it_leave_a_line_that_opens(tab: Tab, server: ScriptedServer) -> None:
    """On a small screen in trouble; what somebody has chosen stays."""
    server.opening = opening(crowded(stream()))
    tab.open(server.address)
    tab.until_text("#map", "36 edges, 6 in trouble")
    assert not tab.texts("#map button.node")
    click(tab, "#map button", "show")
    tab.until(lambda: len(tab.texts("#map button.node")) == 12)
    server.say("map", fleet_map(1, 1))
    tab.until(lambda: len(tab.texts("#map button.node")) == 2)
    assert tab.findings() == []
    tab.size(1280, 1000)
    server.opening = opening(crowded(stream()))
    tab.open(server.address)
    tab.until(lambda: len(tab.texts("#map button.node")) == 12)


def test_on_a_phone_it_is_as_wide_as_the_screen(tab: Tab, server: ScriptedServer) -> None:
    """At 390 pixels nothing is cut off sideways, and it is drawn anew where the screen turns."""
    tab.size(390, 844)
    shown(tab, server)
    width = "return document.querySelector('#map svg').getBoundingClientRect().width"
    narrow = tab.js(width)
    assert 200 < narrow <= 390
    assert tab.js("return document.scrollingElement.scrollWidth") <= 390
    tab.size(844, 390)
    tab.until(lambda: tab.js(width) > narrow + 100)


def test_a_server_without_a_map_leaves_one_line(tab: Tab, server: ScriptedServer) -> None:
    """An older server sends none."""
    server.opening = [message for message in opening(stream()) if message[0] != "map"]
    tab.open(server.address)
    tab.until_text("#map", "This server has sent no map yet")
    assert tab.js("return document.querySelector('#map').getBoundingClientRect().height") < 60
