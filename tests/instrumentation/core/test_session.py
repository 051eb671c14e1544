"""The session: identity, kill switch, epochs, and its new life after a fork."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from penstock.instrumentation.core import Identity, Session, Settings

SETTINGS = Settings("unix:///run/penstock/ingest.sock")


def test_every_change_of_active_is_reported() -> None:
    """The callback receives what the attribute holds: off, on, paused, on again, stopped."""
    seen: list[bool] = []
    session = Session(seen.append)
    session.configure(SETTINGS)
    session.set_paused("policy", paused=True)
    session.set_paused("policy", paused=False)
    session.stop()
    assert seen == [True, False, True, False]
    assert session.active is False


def test_any_reason_holds_the_kill_switch() -> None:
    """It is lifted when the last reason is cleared."""
    session = Session()
    session.configure(SETTINGS)
    session.set_paused("ingest", paused=True)
    session.set_paused("policy", paused=True)
    session.set_paused("ingest", paused=False)
    assert (session.paused, session.active) == (True, False)
    session.set_paused("policy", paused=False)
    assert (session.paused, session.active) == (False, True)


@pytest.mark.parametrize(
    ("first", "second", "process"),
    [("worker", "engine-core", "engine-core"), ("engine-core", "api", "engine-core"), ("", "api", "api")],
)
def test_the_highest_part_names_the_process(first: str, second: str, process: str) -> None:
    """A part of lower precedence does not replace a higher one."""
    session = Session()
    session.identify(Identity(process=first))
    assert session.identify(Identity(process=second)) is (process == second)
    assert session.identity.process == process


def test_labels_override_a_guessed_role() -> None:
    """The role of ``PENSTOCK_LABELS`` is not a guess."""
    session = Session()
    guess = Identity(process="worker", role="decode", role_guessed=True)
    session.identify(guess)
    assert session.identity is guess
    session.configure(Settings(SETTINGS.endpoint, labels=MappingProxyType({"role": "prefill"})))
    session.identify(guess)
    assert (session.identity.role, session.identity.role_guessed) == ("prefill", False)


def test_a_new_epoch_is_announced_until_the_end() -> None:
    """Subscribers are called after the change; :meth:`Session.stop` drops them."""
    session, seen = Session(), []
    first = session.epoch
    session.subscribe(lambda: seen.append(session.epoch))
    session.new_epoch()
    assert seen == [session.epoch] != [first]
    session.stop()
    session.new_epoch()
    assert len(seen) == 1


def test_a_child_begins_a_new_life() -> None:
    """Nothing of the parent's stays but the settings; a held lock and the subscribers are left behind."""
    session, seen = Session(), []
    session.configure(SETTINGS)
    session.identify(Identity(process="engine-core"))
    session.subscribe(lambda: seen.append(True))
    before = (session.epoch, session.secret)
    session._lock = None  # type: ignore[assignment]  # as if another thread of the parent held it for ever
    session.after_fork_in_child(grpc_forbidden=False)
    session.new_epoch()
    assert (session.settings, session.active, session.identity) == (SETTINGS, True, Identity())
    assert session.epoch != before[0]
    assert session.secret != before[1]
    assert seen == []


@pytest.mark.parametrize("by", ["ingest", "policy"])
def test_a_child_of_a_paused_process_waits_for_its_own_greeting(by: str) -> None:
    """A child has no policy stream that could clear the parent's pause."""
    session = Session()
    session.configure(SETTINGS)
    session.set_paused(by, paused=True)
    session.after_fork_in_child(grpc_forbidden=False)
    assert session.paused
    session.set_paused("ingest", paused=False)
    assert session.active


def test_forbidden_grpc_stays_forbidden() -> None:
    """A child that must not use grpc is off, and so is its child."""
    session = Session()
    session.configure(SETTINGS)
    session.after_fork_in_child(grpc_forbidden=True)
    session.after_fork_in_child(grpc_forbidden=False)
    assert (session.off, session.active) == (True, False)
