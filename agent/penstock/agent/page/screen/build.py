"""A screen of the answers, of 64 KiB at most. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.agent.page.screen.banners import banners
from penstock.agent.page.screen.engines import engine_table
from penstock.agent.page.screen.model import Peers, Screen
from penstock.agent.page.screen.peers import peer_table
from penstock.agent.page.screen.policy import policy_table
from penstock.agent.page.screen.verdict import verdict
from penstock.agent.page.screen.waits import waits
from penstock.agent.page.wire import MAX_MESSAGE_BYTES, encode

if TYPE_CHECKING:
    from penstock.agent.page.screen.answers import ScreenAnswers


def build_screen(answers: ScreenAnswers, peers: Peers | None = None) -> Screen:
    """Return the screen of *answers*, of any size; *peers*: their table, if it is there already."""
    return Screen(
        now=round(answers.now * 1e3),
        data_time=round(answers.data_time * 1e3),
        verdict=verdict(answers),
        banners=banners(answers),
        peers=peer_table(answers) if peers is None else peers,
        waits=waits(answers),
        policy=policy_table(answers),
        engines=engine_table(answers),
    )


def fitted(screen: Screen, most: int = MAX_MESSAGE_BYTES) -> tuple[Screen, bytes]:
    """Return *screen* and its JSON, with as many rows as *most* bytes hold."""
    while len(encoded := encode(screen)) > most:
        screen = _smaller(screen, len(encoded) - most)
    return screen, encoded


def _smaller(screen: Screen, excess: int) -> Screen:
    """Return the screen with fewer rows of what is largest, until *excess* bytes are gone; the counts say what is left out.

    Raises:
        ValueError: it has no rows any more.

    """
    sizes = {
        name: len(encode(getattr(screen, name)))
        for name in ("peers", "waits", "policy", "engines", "banners", "verdict")
    }
    while excess > 0:
        cuts = ((name, _cut(screen, name)) for name in sorted(sizes, key=lambda name: -sizes[name]))
        name, cut = next((each for each in cuts if each[1] != screen), ("", screen))
        if not name:
            raise ValueError(f"a screen without rows has {excess} bytes too many")
        screen, size = cut, len(encode(getattr(cut, name)))
        excess -= sizes[name] - size
        sizes[name] = size
    return screen


def _cut(screen: Screen, name: str) -> Screen:
    match name:
        case "peers":
            rows = _two_thirds(screen.peers.rows)
            left = None if screen.peers.total is None else screen.peers.total - len(rows)
            return replace(screen, peers=replace(screen.peers, rows=rows, left_out=left))
        case "waits":
            return replace(screen, waits=replace(screen.waits, rows=_two_thirds(screen.waits.rows)))
        case "policy":
            return replace(screen, policy=replace(screen.policy, rows=_two_thirds(screen.policy.rows)))
        case "engines":
            rows_left = _two_thirds(screen.engines.rows)
            left = screen.engines.total - len(rows_left)
            return replace(screen, engines=replace(screen.engines, rows=rows_left, left_out=left))
        case "banners":
            return replace(screen, banners=_two_thirds(screen.banners))
    return replace(screen, verdict=replace(screen.verdict, causes=_two_thirds(screen.verdict.causes)))


def _two_thirds(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    return rows[: len(rows) * 2 // 3]
