"""Which process speaks for an engine, on a clock that the tests set."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.errors import HeldError
from penstock.agent.model import EngineKey, digest
from penstock.agent.sources import engines as module
from penstock.agent.sources.engines import EngineOwners

from tests.support.manual_clock import SECOND, ManualClock

KEY = EngineKey("decode", "0")
OWN, OTHER, THIRD = digest(b"own"), digest(b"other"), digest(b"third")
GRACE = 10.0


class House:
    """Holders of one engine, with what they were told."""

    def __init__(self):
        self.clock = ManualClock()
        self.owners = EngineOwners(GRACE, lambda: self.clock() / SECOND)
        self.ousted = []

    def enter(self, credential):
        """Take a stream in; its end by force is noted."""
        return self.owners.enter(KEY, credential, lambda: self.ousted.append(credential))

    def refuses(self, credential):
        """Tell whether a stream is kept out; one that is not leaves again."""
        try:
            self.owners.leave(self.enter(credential), goodbye=True)
        except HeldError:
            return True
        return False


@pytest.fixture
def house():
    """Return an empty one."""
    return House()


def test_both_streams_of_a_process_and_no_other(house):
    """The engine is held until the last of them has ended."""
    first, second = house.enter(OWN), house.enter(OWN)
    assert house.refuses(OTHER)
    house.owners.leave(first)
    assert house.refuses(OTHER)
    house.owners.leave(second)
    assert not house.refuses(OTHER)
    assert house.ousted == []


def test_the_sentence_says_what_to_do(house):
    """For the two honest cases: two servers of one name, and a restart."""
    house.enter(OWN)
    with pytest.raises(HeldError, match=r"engine 'decode/0' is held .* PENSTOCK_SERVER .* started again"):
        house.enter(OTHER)


def test_an_engine_that_is_killed_and_started_again(house):
    """Its new process has a new secret, and comes in at once; nothing stands in its way later."""
    house.owners.leave(house.enter(OWN))
    again = house.enter(OTHER)
    house.clock.advance(GRACE + 1)
    assert house.refuses(OWN)
    house.owners.leave(again)
    assert not house.refuses(THIRD)


def test_a_process_that_comes_back_has_its_engine_again(house):
    """Within the grace: whatever took it meanwhile is no successor."""
    house.owners.leave(house.enter(OWN))
    house.enter(OTHER)
    house.enter(OTHER)
    own = house.enter(OWN)
    assert house.ousted == [OTHER, OTHER]
    assert house.refuses(OTHER)
    house.owners.leave(own)
    house.enter(THIRD)
    house.enter(OWN)
    assert house.ousted == [OTHER, OTHER, THIRD]


def test_one_that_comes_and_goes_displaces_no_other(house):
    """The first that broke off keeps its right, however many come after it."""
    house.owners.leave(house.enter(OWN))
    for number in range(20):
        house.owners.leave(house.enter(digest(b"%d" % number)))
    held = house.enter(OTHER)
    house.enter(OWN)
    assert house.ousted == [OTHER]
    # What was ousted changes nothing when its stream ends.
    house.owners.leave(held)
    assert house.refuses(OTHER)


@pytest.mark.parametrize("last", ["ingest", "policy"])
def test_after_a_goodbye_no_connection_comes_back(house, last):
    """Whichever of the two streams ends first: only one of them says it."""
    ingest, policy = house.enter(OWN), house.enter(OWN)
    if last == "policy":
        house.owners.leave(ingest, goodbye=True)
        house.owners.leave(policy)
    else:
        house.owners.leave(policy)
        house.owners.leave(ingest, goodbye=True)
    house.enter(OTHER)
    assert house.refuses(OWN)
    assert house.ousted == []


def test_engines_without_a_secret(house):
    """As before there were any: they come in beside each other, and not while a process that has one is here."""
    old = house.enter(b"")
    house.enter(b"")
    new = house.enter(OWN)
    assert house.refuses(b"")
    house.owners.leave(old)
    assert house.refuses(b"")
    house.owners.leave(new)
    house.enter(b"")
    house.enter(OWN)
    assert house.ousted == [b"", b""]


def test_after_a_restart_of_the_agent(house):
    """What the journal knows of an engine holds, for a time, against what is quicker."""
    house.owners.restore(KEY, OWN, 60.0)
    house.enter(OTHER)
    house.clock.advance(59)
    house.enter(OWN)
    assert house.ousted == [OTHER]
    house.owners.restore(KEY, b"", 60.0)
    house.clock.advance(120)
    assert house.refuses(OTHER)


def test_engines_that_are_gone_are_forgotten(house, monkeypatch):
    """First those that cannot be taken back any more; one that is connected never."""
    monkeypatch.setattr(module, "_MAX_ENGINES", 8)
    here = [house.owners.enter(EngineKey("", str(n)), OWN, lambda: None) for n in range(2)]
    house.owners.leave(here.pop())
    for number in range(100):
        key = EngineKey("gone", str(number))
        house.owners.leave(house.owners.enter(key, OTHER, lambda: None), goodbye=number % 2 == 0)
        assert len(house.owners._engines) <= 8
    with pytest.raises(HeldError):
        house.owners.enter(EngineKey("", "0"), OTHER, lambda: None)


@given(st.lists(st.tuples(st.sampled_from(["enter", "leave", "wait"]), st.integers(0, 3), st.floats(0, 12))))
def test_at_most_one_process_holds_an_engine(steps):
    """In any order of coming, going and waiting; and a process that is kept out finds another one connected."""
    house = House()
    names = [digest(b"%d" % number) for number in range(3)] + [b""]
    here: list[tuple[bytes, Any]] = []
    for step, number, seconds in steps:
        if step == "wait":
            house.clock.advance(seconds)
        elif step == "leave" and here:
            _, hold = here.pop(number % len(here))
            house.owners.leave(hold)
        elif step == "enter":
            before = len(house.ousted)
            try:
                hold = house.enter(names[number])
            except HeldError:
                assert any(credential not in (b"", names[number]) for credential, _ in here)
                continue
            if len(house.ousted) > before:
                here = [each for each in here if each[0] == names[number]]
            here.append((names[number], hold))
        assert len({credential for credential, _ in here} - {b""}) <= 1


def test_a_digest_is_not_the_secret():
    """And of no secret there is none."""
    assert digest(b"") == b""
    assert b"secret" not in digest(b"secret")
    assert len(digest(b"x" * 64)) == 16
