"""The five incidents on the page, of recordings of real engines: the screen shows what the guide says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.incidents.asking import asked
from tests.support.incidents.table import FIVE, INCIDENTS
from tests.support.page.bundle_page import bundle_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.browser.chromium import Tab

IMAGES = Path(__file__).parents[4] / "docs" / "images"
GUIDE = IMAGES.parent / "guides" / "page.md"
_CODE = re.compile(r"`([^`]+)`")


def _guide(name: str) -> tuple[list[str], list[str]]:
    """Return the words of the guide's row of an incident: those of the first screen, and those behind the click."""
    rows = [
        line
        for line in GUIDE.read_text().splitlines()
        if line.startswith("| [") and f"page-{name}.png" in line
    ]
    assert len(rows) == 1, name
    look, click = rows[0].strip(" |").split(" | ")[1:3]
    return _CODE.findall(look), _CODE.findall(click)


def _peers(tab: Tab) -> dict[str, str]:
    """Return the rows of the table of peers by address, which stands behind the name of a known engine."""
    addresses = tab.texts("#peers tbody th > :is(.note, .name:last-child)")
    return dict(zip(addresses, tab.texts("#peers tbody tr"), strict=True))


def _open_peer(tab: Tab, peer: str) -> str:
    """Click on what the engine says of a peer, and return where it is shown."""
    tab.js(
        "[...document.querySelectorAll('#peers tbody tr')].find((row) => row.querySelector('th').textContent.includes(arguments[0]))"
        ".querySelector('.cell').click()",
        peer,
    )
    tab.until_text("dialog", "Pair")
    return "dialog"


def _network_flaps(tab: Tab, peer: str) -> str:
    """One peer is slow, the others are not, and nothing has failed."""
    rows = _peers(tab)
    assert "slow" in rows.pop(peer)
    assert rows
    assert all("ok" in row for row in rows.values())
    assert tab.texts("#failures tbody tr") == []
    return _open_peer(tab, peer)


def _incompatible(tab: Tab, peer: str) -> str:
    """All failed handshakes are with one peer, which is incompatible."""
    assert "incompatible" in _peers(tab)[peer]
    failed = [row for row in tab.texts("#failures tbody tr") if "handshake/incompatible" in row]
    assert len(failed) > 1
    assert set(tab.texts("#failures tbody .name")) >= {peer}
    return _open_peer(tab, peer)


def _encoder_dies(tab: Tab, peer: str) -> str:
    """Its engine is away, which a banner says, and its reader has failed in mid-transfer."""
    assert "lost" in _peers(tab)[peer]
    assert any(peer in row and "ec transfer/remote_reset" in row for row in tab.texts("#failures tbody tr"))
    assert "encoder/0" in tab.text(".banners")
    assert re.search(r"\d failures? in the last 15 minutes, \d+ in the minute", tab.text(".time"))
    tab.js(
        "[...document.querySelectorAll('nav button')].find((one) => one.textContent.startsWith('Engines')).click()"
    )
    tab.until_text("dialog", "encoder/0")
    tab.js(
        "[...document.querySelectorAll('dialog .name')].find((one) => one.textContent === 'encoder/0').click()"
    )
    tab.until_text("dialog", "Processes")
    return "dialog"


def _rebalances(tab: Tab, _peer: str) -> str:
    """No peer is in trouble, the changes are rebalances, and the cause unfolds to its evidence."""
    rows = _peers(tab)
    assert rows
    assert all("ok" in row for row in rows.values())
    changes = tab.texts("#failures tbody tr")
    assert changes
    assert all("pause" in row for row in changes)
    tab.js("document.querySelector('.causes summary').click()")
    return ".causes details[open]"


def _fail_everywhere(tab: Tab, _peer: str) -> str:
    """One field is in force, by somebody, since a moment."""
    assert tab.texts("#policy tbody tr th") == ["kvLoadFailure.action"]
    assert re.search(r"mallory@ops, \d+ s ago", tab.text("#policy tbody"))
    assert any("failed by policy no-recompute/1" in row for row in tab.texts("#failures tbody tr"))
    tab.js(
        "[...document.querySelectorAll('#policy .name')].find((one) => one.textContent === 'no-recompute').click()"
    )
    tab.until_text("dialog", "Changes")
    return "dialog"


# What is looked at, and the click; each returns where it opens.
_LOOKS: dict[str, Callable[[Tab, str], str]] = {
    "prefill-network-flaps": _network_flaps,
    "half-incompatible": _incompatible,
    "encoder-dies": _encoder_dies,
    "rebalances-stall": _rebalances,
    "fail-everywhere": _fail_everywhere,
}


@pytest.mark.parametrize("name", FIVE)
def test_the_screen_shows_what_the_guide_says(tab: Tab, name: str) -> None:
    """The verdict is the sentence of ``agentctl diagnose``; what the guide's row names is there, before and after its click."""
    incident = INCIDENTS[name]
    said = json.loads(asked(incident, "diagnose", "--since", incident.window, "-o", "json").stdout)
    first, behind = _guide(name)
    with bundle_page(incident) as page:
        tab.open(page)
        tab.until(lambda: tab.text("#verdict .sentence") == said["sentence"])
        assert tab.texts(".causes summary")[0].startswith(said["causes"][0]["sentence"])
        assert re.fullmatch(r"as of [\d-]{10} [\d:]{8}", tab.text("#fresh"))
        shown = tab.text("main")
        assert [word for word in first if word not in shown] == []
        place = _LOOKS[name](tab, said["causes"][0].get("peer", ""))
        opened = tab.text(place)
        assert [word for word in behind if word not in opened] == []
    assert first
    assert behind
    assert (IMAGES / f"page-{name}.png").is_file()
