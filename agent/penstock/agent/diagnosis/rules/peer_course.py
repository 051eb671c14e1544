"""The course of a peer's trouble: whether it is slow at all, when the trouble began, and whether it has ended. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.agent.diagnosis.facts import (
    first_sign,
    longest_pause,
    words,
)
from penstock.agent.diagnosis.rules.peer_surroundings import NO_SERVERS
from penstock.proto.deferral_channels import WAITED_CHANNELS
from penstock.proto.names import NANOS
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from penstock.agent.diagnosis.facts import Facts, PeerTrouble
    from penstock.agent.model import EngineKey


def is_in_trouble(trouble: PeerTrouble) -> bool:
    """Return whether it is to be told here: not where handshakes are incompatible."""
    if any(each.error_type == common.ERROR_TYPE_INCOMPATIBLE for each in trouble.failures):
        return False
    return bool(trouble.failures or trouble.collateral) or _is_slow(trouble)


def _is_slow(trouble: PeerTrouble) -> bool:
    late = [*(trouble.slow if _is_slower_than_before(trouble) else ()), *trouble.delayed]
    many = len(late) >= max(limits.SLOW_WAITS_COUNT, limits.SLOW_WAITS_SHARE * trouble.waits)
    least = limits.SLOW_WAITS_LEAST_SECONDS if many else limits.SLOW_WAITS_SECONDS
    return bool(trouble.present) or sum(each.excess for each in late) >= least


def _is_slower_than_before(trouble: PeerTrouble) -> bool:
    """Return whether more of its waits are slow than is usual: some always are."""
    if trouble.usual_share is None:
        return sum(each.excess for each in trouble.slow) >= limits.SLOW_WAITS_UNKNOWN_SECONDS
    return len(trouble.slow) > limits.SLOW_WAITS_TIMES * trouble.usual_share * trouble.waits


def end_of(facts: Facts, trouble: PeerTrouble) -> int:
    """Return when the trouble was last seen, nanoseconds, where loads have gone well since; 0 while it lasts.

    Of a peer that is seldom read from, one load is enough after a longer quiet time.
    """
    times = _signs(trouble)
    if trouble.present or not times:
        return 0
    well, quiet = sum(each > times[-1] for each in trouble.well), facts.now - times[-1]
    least = longest_pause(times) * (1.0 if well >= limits.QUIET_COUNT else limits.QUIET_TIMES)
    return times[-1] if well and quiet >= least else 0


def routed_away(facts: Facts, channel: int, peer: str, trouble: PeerTrouble) -> int:
    """Return when the trouble was last seen, nanoseconds, where the router has let go of the peer since; else 0.

    Nobody tried it, although nothing keeps them from it, and each engine that had trouble with it loads well from others.
    """
    times = _signs(trouble)
    if trouble.present or not times or trouble.tried > times[-1]:
        return 0
    quiet = facts.now - times[-1]
    least = max(limits.QUIET_TIMES * longest_pause(times), limits.ROUTED_AWAY_SECONDS * NANOS)
    if quiet < least or any(each.peer.address == peer for each in facts.quarantines):
        return 0
    well = Counter(
        each.key
        for each in facts.present.waits
        if WAITED_CHANNELS.get(each.reason) == channel
        and each.peer not in {peer, *NO_SERVERS}
        and each.time > times[-1]
    )
    # Of an engine that has been stopped, or forgotten since, nothing more can be expected.
    expected = {words.key_of(each.key) for each in facts.engines if not each.said_goodbye}
    readers = [key for key in engines_of(trouble) if key in expected or not facts.engines]
    return times[-1] if all(well[key] >= limits.QUIET_COUNT for key in readers) else 0


def untried_words(facts: Facts, trouble: PeerTrouble) -> str:
    """Return that nothing was read from the peer since its trouble, which then is past, but not known to have ended; or ""."""
    times = _signs(trouble)
    if trouble.present or not times or trouble.tried > times[-1]:
        return ""
    quiet = facts.now - times[-1]
    return (
        f", and was not tried in the {words.span(quiet // NANOS)} since"
        if quiet >= longest_pause(times)
        else ""
    )


def begin_of(facts: Facts, trouble: PeerTrouble) -> int:
    """Return when its first sign was seen, nanoseconds: of a slow wait, when that began."""
    waits = (each.wait.time - int(each.wait.seconds * NANOS) for each in (*trouble.slow, *trouble.delayed))
    waiting = (facts.now - int(each.age * NANOS) for each in trouble.present)
    present = (*_signs(trouble), *waits, *waiting)
    if trouble.failures:
        return first_sign(facts, present, (each.time for each in trouble.before))
    return first_sign(facts, present, trouble.slow_before, 0)


def _signs(trouble: PeerTrouble) -> list[int]:
    """Return when something went wrong with the peer, nanoseconds, sorted."""
    return sorted(
        (
            *(each.time for each in (*trouble.failures, *trouble.collateral)),
            *(each.time for each in trouble.load_ends),
            *(each.wait.time for each in (*trouble.slow, *trouble.delayed)),
        )
    )


def engines_of(trouble: PeerTrouble) -> tuple[EngineKey, ...]:
    """Return the engines that had trouble with the peer, sorted."""
    return words.keys_of(
        [
            *(each.key for each in (*trouble.failures, *trouble.collateral)),
            *(each.key for each in trouble.load_ends),
            *(each.wait.key for each in (*trouble.slow, *trouble.delayed)),
            *(each.key for each in trouble.present),
        ]
    )


def is_usual_known(trouble: PeerTrouble) -> bool:
    """Return whether it is known how long waits for the peer took: of the time before, or in the window, before the first long one."""
    if trouble.usual_share is not None:
        return True
    first = min((each.wait.time - int(each.wait.seconds * NANOS) for each in trouble.slow), default=0)
    return sum(each < first for each in trouble.well) >= limits.USUAL_LOGGED_COUNT
