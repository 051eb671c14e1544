"""A screen of the answers, of 64 KiB at most. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.agent.page.screen.banners import at_most, banners
from penstock.agent.page.screen.model import Peers, Screen
from penstock.agent.page.screen.tables import engine_table, peer_table, policy_table, waits
from penstock.agent.page.screen.verdict import verdict
from penstock.agent.page.wire import MAX_MESSAGE_BYTES, encode, encode_fields, join_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.agent.page.screen.model import ScreenAnswers

_CUT = ("peers", "waits", "policy", "engines", "banners", "verdict")


def build_screen(
    answers: ScreenAnswers, peers: Peers | None = None, *, between: Callable[[], None] = lambda: None
) -> Screen:
    """Return the screen of *answers*, of any size.

    Args:
        answers: what is shown.
        peers: their table, if it is there already.
        between: called again and again: after each table, and after rows of the large ones.

    """
    table = peer_table(answers, between=between) if peers is None else peers
    found = banners(answers)
    between()
    policy = policy_table(answers)
    between()
    return Screen(
        now=round(answers.now * 1e3),
        data_time=round(answers.data_time * 1e3),
        verdict=verdict(answers),
        banners=found,
        peers=table,
        waits=waits(answers),
        policy=policy,
        engines=engine_table(answers, between=between),
    )


def fitted(
    screen: Screen, most: int = MAX_MESSAGE_BYTES, *, between: Callable[[], None] = lambda: None
) -> tuple[Screen, bytes]:
    """Return *screen* and its JSON, with as many rows as *most* bytes hold; *between* is called after each field.

    Raises:
        ValueError: without rows it has too many bytes, too.

    """
    fields = encode_fields(screen, between)
    while len(encoded := join_fields(Screen, fields)) > most:
        name, screen = _smaller(screen, fields, len(encoded) - most)
        fields[name] = encode(getattr(screen, name))
        between()
    return screen, encoded


def _smaller(screen: Screen, fields: Mapping[str, bytes], excess: int) -> tuple[str, Screen]:
    """Return the largest field that has rows, and the screen with fewer of them; the counts say what is left out."""
    for name in sorted(_CUT, key=lambda name: -len(fields[name])):
        cut = _cut(screen, name)
        if cut != screen:
            return name, cut
    raise ValueError(f"a screen without rows has {excess} bytes too many")


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
            return replace(screen, banners=at_most(screen.banners, _two_thirds_of(len(screen.banners))))
    found = screen.verdict
    causes = _two_thirds(found.causes)
    left = found.left_out + len(found.causes) - len(causes)
    return replace(screen, verdict=replace(found, causes=causes, left_out=left))


def _two_thirds(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    return rows[: _two_thirds_of(len(rows))]


def _two_thirds_of(count: int) -> int:
    return count * 2 // 3
