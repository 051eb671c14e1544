"""The rails that keep servers in rotation: evidence, age, pods, budget, who put it back; each with the case it is for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.model import EngineKey
from penstock.agent.policy.manifest import EjectionRules
from penstock.agent.relay.ejections.evidence import SeenFleet, Server, Vote
from penstock.agent.relay.ejections.rails import (
    GAP_SECONDS,
    HISTORY_SECONDS,
    MOST_SECONDS,
    Act,
    ActHistory,
    EjectionRails,
)
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.agent.relay.ejections.rails import EjectionVerdict

_POOL = frozenset({"prefill servers of m"})
_RULES = EjectionRules(policy="p", enforces=True)
_OBSERVING = replace(_RULES, enforces=False)
_BEGAN = 1_000_000.0


def _server(
    name: str, *, out: bool = False, pools: frozenset[str] = _POOL, agent: str = "", author: str = "a person"
) -> Server:
    order = admin.Ejection(author=author) if out else None
    return Server(name, agent or name, (EngineKey(name, "0"),), pools, (f"10.0.0.{name}:1",), order)


def _bad(*agents: str, failures: int = 5) -> list[Vote]:
    return [Vote(agent, True, failures, "it refuses") for agent in agents]


def _well(*agents: str) -> list[Vote]:
    return [Vote(agent, False, 0, "") for agent in agents]


class _Play:
    """Looks of one leader at the same servers."""

    def __init__(self, servers: Sequence[Server], rules: EjectionRules = _RULES) -> None:
        self.rails = EjectionRails()
        self.servers, self.rules = servers, rules
        self.history: list[Act] = []
        self.unknown: set[str] = set()
        self.agents: set[str] = set()
        self.silent: set[str] = set()
        self.only: str | None = None
        self.last: float | None = None

    def look(self, after: float, **votes: Iterable[Vote]) -> dict[str, EjectionVerdict]:
        cast = {name.removeprefix("s"): list(found) for name, found in votes.items()}
        rules = (
            {each.name: self.rules for each in self.servers}
            if self.only is None
            else dict.fromkeys(self.only, self.rules)
        )
        now = _BEGAN + after
        # A look every five seconds, as long as nothing changes.
        while self.last is not None and now - self.last > GAP_SECONDS:
            self.last += 10
            self.rails.look(self.last, self._fleet(cast), rules)
        self.last = now
        self.rails.look(now, self._fleet(cast), rules)
        found = self.rails.judge(rules, ActHistory(self.history, frozenset(self.unknown)))
        return {each.server.name: each for each in found}

    def _fleet(self, cast: dict[str, list[Vote]]) -> SeenFleet:
        readers = {vote.agent for votes in cast.values() for vote in votes}
        self.agents |= readers | {each.agent for each in self.servers}
        return SeenFleet(self.servers, cast, frozenset(self.agents), frozenset(self.silent))

    def words(self, after: float, **votes: Iterable[Vote]) -> dict[str, str]:
        return {name: each.word for name, each in self.look(after, **votes).items()}


_THREE = [_server("1"), _server("2"), _server("3")]


def test_two_readers_that_agree_for_long_enough() -> None:
    """First it is watched; after 30 s it is to go out for a minute, with a sentence that has the evidence."""
    play = _Play(_THREE)
    first = play.look(0, s1=_bad("a", "b"))["1"]
    assert (first.word, first.since) == ("watched", _BEGAN)
    assert first.why.endswith("; 30s of it are needed")
    assert play.words(29.9, s1=_bad("a", "b")) == {"1": "watched"}
    found = play.look(30, s1=_bad("a", "b", failures=2))["1"]
    assert (found.word, found.seconds) == ("eject", 60)
    # What they counted before holds.
    assert found.why == ("2 of 2 readers (a, b) blame 10.0.0.1:1, 10 failed loads: it refuses")


@pytest.mark.parametrize(
    ("votes", "word"),
    [
        (_bad("a"), ""),
        (_bad("a") + _well("b"), ""),
        (_bad("a", "b") + _well("c", "d"), ""),
        (_bad("a", "b") + _well("c"), "eject"),
        (_bad("a", "b", failures=2), "watched"),
        (_bad("a", failures=900) + _bad("b", failures=2), "watched"),
        (_bad("a", "b", "c", failures=3), "eject"),
        ([], ""),
    ],
)
def test_evidence(votes: list[Vote], word: str) -> None:
    """Two agents at least, more than half of those that read, and each with failed loads of its own."""
    play = _Play(_THREE)
    play.look(0, s1=votes)
    assert play.words(60, s1=votes).get("1", "") == word


def test_evidence_that_stops_begins_anew() -> None:
    """A look in which its readers do not agree ends what was before."""
    play = _Play(_THREE)
    play.look(0, s1=_bad("a", "b"))
    play.look(25, s1=_well("a", "b"))
    assert play.words(35, s1=_bad("a", "b")) == {"1": "watched"}
    assert play.words(65, s1=_bad("a", "b")) == {"1": "eject"}


def test_two_sick_engines_of_three() -> None:
    """The one that most accuse goes out; the other stays, for a third of the pods may be out."""
    play = _Play(_THREE)
    votes = {"s1": _bad("a", "b"), "s2": _bad("a", "b", "c"), "s3": _well("a", "b", "c")}
    play.look(0, **votes)
    found = play.look(30, **votes)
    assert {name: each.word for name, each in found.items()} == {"1": "held_back", "2": "eject"}
    assert found["1"].why.endswith(
        "; 2 of 3 pods with prefill servers of m would be out, more than maxPodsPercent (34)"
    )


def test_the_last_well_pod_stays() -> None:
    """With all percent allowed, one that is not accused must be left; one that is does not count."""
    play = _Play(_THREE, replace(_RULES, max_pods_percent=100))
    votes = {f"s{number}": _bad("a", "b") for number in (1, 2, 3)}
    play.look(0, **votes)
    found = play.look(30, **votes)
    assert {each.word for each in found.values()} == {"held_back"}
    assert found["1"].why.endswith("; no well pod with prefill servers of m would be left")
    votes["s3"] = _well("a", "b")
    assert play.words(31, **votes) == {"1": "eject", "2": "eject"}


def test_what_others_took_out_counts() -> None:
    """An order of a person, or of a drain, is one of those that may be out."""
    play = _Play([_server("1"), _server("2", out=True), _server("3")])
    play.look(0, s1=_bad("a", "b"))
    assert play.words(30, s1=_bad("a", "b")) == {"1": "held_back", "2": "ejected"}


def test_a_pod_counts_once() -> None:
    """An agent that says it has a hundred servers makes no room for more orders."""
    liar = [_server(f"9{number}", agent="liar") for number in range(100)]
    play = _Play([_server("1"), _server("2"), *liar])
    play.look(0, s1=_bad("a", "b"), s2=_bad("a", "b"))
    found = play.words(30, s1=_bad("a", "b"), s2=_bad("a", "b"))
    assert sorted(found.values()) == ["eject", "held_back"]


def test_pools_are_apart_and_a_role_that_is_not_known_is_none() -> None:
    """The only prefill server of a model stays, whatever other models have; so does one of no known role."""
    other = frozenset({"prefill servers of other"})
    servers = [_server("1", pools=other), _server("2"), _server("3"), _server("4", pools=frozenset())]
    play = _Play(servers, replace(_RULES, max_pods_percent=100))
    votes = {"s1": _bad("a", "b"), "s4": _bad("a", "b")}
    play.look(0, **votes)
    found = play.look(30, **votes)
    assert found["1"].why.endswith("no well pod with prefill servers of other would be left")
    assert found["4"].why.endswith("its role is not known, so nor is what else serves it")


def test_each_order_of_an_hour_lasts_twice_as_long() -> None:
    """Up to an hour; orders of persons and of other servers do not count."""
    play = _Play(_THREE, replace(_RULES, per_hour=60))
    play.look(0, s1=_bad("a", "b"))
    play.history = [Act("2", _BEGAN), Act("1", _BEGAN, author="a person")]
    assert play.look(30, s1=_bad("a", "b"))["1"].seconds == 60
    play.history += [Act("1", _BEGAN)] * 2
    assert play.look(31, s1=_bad("a", "b"))["1"].seconds == 240
    play.history += [Act("1", _BEGAN)] * 9
    assert play.look(32, s1=_bad("a", "b"))["1"].seconds == MOST_SECONDS


def test_a_budget_for_the_fleet() -> None:
    """So many orders an hour, of all servers together."""
    play = _Play(_THREE, replace(_RULES, per_hour=2))
    play.look(0, s1=_bad("a", "b"))
    play.history = [Act("7", _BEGAN), Act("8", _BEGAN), Act("8", _BEGAN, is_end=True)]
    found = play.look(30, s1=_bad("a", "b"))["1"]
    assert found.why.endswith("; 2 orders were given in the last hour, as many as perHour")


def test_what_a_person_put_back_is_left_alone() -> None:
    """One command undoes it, for an hour; the end that the relay itself ordered is none."""
    play = _Play(_THREE)
    play.look(0, s1=_bad("a", "b"))
    play.history = [Act("1", _BEGAN - 600, is_end=True)]
    assert play.words(30, s1=_bad("a", "b")) == {"1": "eject"}
    play.history = [Act("1", _BEGAN - 600, is_end=True, author="relay: maria")]
    found = play.look(31, s1=_bad("a", "b"))["1"]
    assert (found.word, found.why.partition("; ")[2]) == (
        "held_back",
        "relay: maria put it back; it is left alone for 49m29s",
    )


def test_an_agent_that_refuses_is_asked_later() -> None:
    """Its sentence is shown meanwhile."""
    play = _Play(_THREE)
    play.look(0, s1=_bad("a", "b"))
    play.rails.refused("1", "it cannot answer for its readiness", _BEGAN + 90)
    found = play.look(30, s1=_bad("a", "b"))["1"]
    assert found.why.endswith("; its agent did not take the order: it cannot answer for its readiness")
    assert play.words(91, s1=_bad("a", "b")) == {"1": "eject"}


def test_observing_goes_by_what_it_would_have_done() -> None:
    """One order is counted while it would last, then twice as long; the rails see what would be out."""
    play = _Play(_THREE, _OBSERVING)
    votes = {"s1": _bad("a", "b"), "s2": _bad("a", "b"), "s3": _well("a", "b")}
    play.look(0, **votes)
    assert play.words(30, **votes) == {"1": "would_eject", "2": "held_back"}
    assert play.words(85, **votes) == {"1": "would_eject", "2": "held_back"}
    assert play.rails.imagined == 1
    found = play.look(90, **votes)
    assert (found["1"].seconds, play.rails.imagined) == (120, 2)
    # Over an hour later nothing of it counts any more.
    later = play.look(90 + 120 + HISTORY_SECONDS, **votes)
    assert later["1"].seconds == 60


def test_servers_of_no_policy_are_left_out() -> None:
    """Neither judged nor told; they count in their pool."""
    play = _Play(_THREE)
    play.only = "1"
    votes = {"s1": _bad("a", "b"), "s2": _bad("a", "b")}
    play.look(0, **votes)
    assert play.words(30, **votes) == {"1": "eject"}
    # That one of them is accused counts, too: it is not the well one that must be left.
    play.rules = replace(_RULES, max_pods_percent=100)
    found = play.look(31, **votes, s3=_bad("a"))
    assert found["1"].why.endswith("; no well pod with prefill servers of m would be left")


def test_pods_that_are_away_are_as_good_as_out() -> None:
    """A pod that does not answer, or whose server restarts, stays in its pool until the fleet has it no more."""
    play = _Play(_THREE)
    play.look(0, s1=_bad("a", "b"))
    play.servers, play.silent = [_server("1"), _server("3")], {"2"}
    found = play.look(30, s1=_bad("a", "b"))["1"]
    assert found.why.endswith(
        "; 2 of 3 pods with prefill servers of m would be out, more than maxPodsPercent (34)"
    )
    play.silent = set()
    assert play.words(31, s1=_bad("a", "b")) == {"1": "held_back"}
    play.agents = set()
    play.rules = replace(_RULES, max_pods_percent=50)
    assert play.words(32, s1=_bad("a", "b")) == {"1": "eject"}


def test_readers_that_are_silent_keep_their_vote() -> None:
    """Those that have read a server, and do not answer now, do not accuse it; one that comes back says what holds."""
    play = _Play(_THREE)
    play.look(0, s1=_bad("a", "b") + _well("c"))
    play.silent = {"c"}
    found = play.look(30, s1=_bad("a", "b"))["1"]
    assert found.word == "eject"
    assert found.why.startswith("2 of 3 readers (a, b)")
    play.look(31, s1=_bad("a", "b") + _well("d"))
    play.silent = {"c", "d"}
    assert play.words(32, s1=_bad("a", "b")) == {}
    play.silent = set()
    assert play.words(33, s1=_bad("a", "b")) == {"1": "watched"}


def test_an_audit_log_that_is_not_known() -> None:
    """Of its agent: somebody may have put the server back."""
    play = _Play(_THREE)
    play.look(0, s1=_bad("a", "b"))
    play.unknown = {"1"}
    found = play.look(30, s1=_bad("a", "b"))["1"]
    assert found.why.endswith(
        "; whether somebody put it back is not known: its agent's audit log was not read"
    )
    play.unknown = {"2"}
    assert play.words(31, s1=_bad("a", "b")) == {"1": "eject"}


def test_after_a_gap_the_evidence_begins_anew() -> None:
    """What was between two looks that are far apart is not known."""
    play = _Play(_THREE)
    play.look(0, s1=_bad("a", "b"))
    play.last = None
    assert play.words(600, s1=_bad("a", "b")) == {"1": "watched"}
    assert play.words(630, s1=_bad("a", "b")) == {"1": "eject"}


def test_a_server_that_was_away_is_judged_a_minute_later() -> None:
    """What readers count is of before its restart; one that is new has none of before."""
    play = _Play([_server("2"), _server("3")], replace(_RULES, max_pods_percent=100))
    play.look(0, s1=[])
    for servers, word in ((_THREE, "eject"), ([_server("2"), _server("3")], ""), (_THREE, "watched")):
        play.servers = servers
        assert play.last is not None
        begun = play.last - _BEGAN
        play.look(begun + 5, s1=_bad("a", "b"))
        assert play.words(begun + 40, s1=_bad("a", "b")).get("1", "") == word


def test_failures_of_before_an_order_are_none_after_it() -> None:
    """Agents count by the minute: a server that is back is judged by what comes a minute later."""
    play = _Play([_server("1", out=True), _server("2"), _server("3")])
    play.look(0, s1=_bad("a", "b"))
    play.servers = _THREE
    found = play.look(40, s1=_bad("a", "b", failures=9))["1"]
    assert (found.word, "0 failed loads" in found.why) == ("watched", True)
    assert play.words(55, s1=_bad("a", "b", failures=0)) == {"1": "watched"}
    assert play.words(120, s1=_bad("a", "b", failures=3)) == {"1": "eject"}


def test_a_server_that_is_back_is_on_trial() -> None:
    """One failed load at each of two readers takes it out again, without waiting; for ten minutes, and not after a person's order."""
    play = _Play(_THREE)
    play.look(0, s1=_bad("a", "b"))
    assert play.words(30, s1=_bad("a", "b")) == {"1": "eject"}
    play.servers = [_server("1", out=True, author="relay (policy p)"), _server("2"), _server("3")]
    play.look(35, s1=_bad("a", "b"))
    play.servers = _THREE
    found = play.look(100, s1=_bad("a") + _bad("b", failures=0))["1"]
    assert (found.word, found.why.partition("; ")[2]) == (
        "watched",
        "a failed load in a minute is needed at each of 2 readers",
    )
    play.look(105, s1=_well("a", "b"))
    assert play.words(110, s1=_bad("a", "b", failures=1)) == {"1": "eject"}
    play.look(115, s1=_well("a", "b"))
    play.look(640, s1=_well("a", "b"))
    assert play.words(645, s1=_bad("a", "b", failures=1)) == {"1": "watched"}
    # Later a person takes it out: that is no verdict on it.
    play.servers = [_server("1", out=True), _server("2"), _server("3")]
    play.look(650, s1=[])
    play.servers = _THREE
    play.look(720, s1=_well("a", "b"))
    assert play.words(725, s1=_bad("a", "b", failures=9)) == {"1": "watched"}


def test_after_an_order_of_a_person_there_is_no_trial() -> None:
    """It was no verdict on the server."""
    play = _Play([_server("1", out=True), _server("2"), _server("3")])
    play.look(0, s1=[])
    play.servers = _THREE
    play.look(5, s1=[])
    play.look(100, s1=_well("a", "b"))
    assert play.words(105, s1=_bad("a", "b", failures=9)) == {"1": "watched"}


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 9)), max_size=6),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 100),
    st.integers(1, 6),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_rails_hold_whatever_is_said(
    said: list[list[tuple[int, bool, int]]], percent: int, per_hour: int, out: list[bool]
) -> None:
    """Never more pods than allowed, never the last, never more than the budget, never without two readers."""
    servers = [_server(str(number), out=out[number]) for number in range(len(said))]
    votes = {
        str(number): [
            Vote(f"r{agent}", bad, failures, "bad") for agent, bad, failures in dict.fromkeys(found)
        ]
        for number, found in enumerate(said)
    }
    rules = dict.fromkeys(votes, replace(_RULES, max_pods_percent=percent, per_hour=per_hour))
    rails = EjectionRails()
    agents = frozenset(
        {each.agent for each in servers} | {vote.agent for cast in votes.values() for vote in cast}
    )
    for after in range(0, 40, 10):
        rails.look(_BEGAN + after, SeenFleet(servers, votes, agents), rules)
    found = [each for each in rails.judge(rules, ActHistory()) if each.word == "eject"]
    gone = {each.server.name for each in found} | {each.name for each in servers if each.order is not None}
    assert len(found) <= per_hour
    if found:
        assert 100 * len(gone) <= percent * len(servers)
        assert len(gone) < len(servers)
    for each in found:
        accusers = [vote for vote in votes[each.server.name] if vote.is_bad]
        assert len(accusers) >= 2
        assert 2 * len(accusers) > len(votes[each.server.name])
        assert each.server.order is None
