"""The registry of hooks: what is installed, and why the rest is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.hooks.registry import NOT_USED, HookRegistry, HookState, MissingPart
from penstock.instrumentation.hooks.requirements import AnyOf, Part, Requirement
from penstock.proto.constants import COMPONENT_SCHEDULER
from penstock.proto.v1.snapshot_pb2 import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.instrumentation.hooks import Need


class Host:
    """A class of vLLM's."""

    def schedule(self, request: object, *, step: int = 0) -> None:
        """Schedule a request."""


class Probe:
    """A hook that counts."""

    component = COMPONENT_SCHEDULER

    def __init__(
        self, name: str = "probe", requires: Any = (), install_error: Exception | None = None
    ) -> None:
        self.name = name
        self.calls: list[str] = []
        self._requires = requires
        self._install_error = install_error

    def requires(self) -> Iterable[Need | Part]:
        """Return or raise what the test wants."""
        if isinstance(self._requires, Exception):
            raise self._requires
        return self._requires

    def install(self) -> None:
        """Count, and fail if the test wants it."""
        self.calls.append("install")
        if self._install_error is not None:
            raise self._install_error

    def uninstall(self) -> None:
        """Count."""
        self.calls.append("uninstall")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> HookRegistry:
    """Make a registry whose errors are contained."""
    monkeypatch.setattr(guard, "raising", False)
    return HookRegistry()


def test_install_is_idempotent(registry: HookRegistry) -> None:
    """A hook is installed once, taken out once, and can come back."""
    hook = Probe(requires=[Requirement(Host, "schedule")])
    assert registry.install(hook)
    assert registry.install(hook)
    assert registry.report() == (HookState("probe", COMPONENT_SCHEDULER, installed=True),)
    registry.uninstall("probe")
    registry.uninstall("probe")
    assert registry.report()[0].reason == "uninstalled"
    assert registry.install(hook)
    assert hook.calls == ["install", "uninstall", "install"]


@pytest.mark.parametrize(
    ("hook", "disabled", "reason", "calls"),
    [
        (Probe(), {"probe"}, "disabled by PENSTOCK_HOOKS_DISABLED", []),
        (Probe(requires=[Requirement(Host, "gone")]), set(), "Host.gone is missing", []),
        (Probe(requires=ImportError("no nixl")), set(), "ImportError: no nixl", []),
        (Probe(requires=RuntimeError("boom")), set(), "RuntimeError: boom", []),
        (Probe(install_error=ValueError("half")), set(), "ValueError: half", ["install", "uninstall"]),
    ],
)
def test_what_does_not_fit_is_left_out(
    registry: HookRegistry, hook: Probe, disabled: set[str], reason: str, calls: list[str]
) -> None:
    """A hook that is disabled, does not fit or fails is reported with the reason; the rest work."""
    other = Probe("other")
    assert not registry.install(hook, disabled)
    assert registry.install(other, disabled)
    assert {state.name: (state.installed, state.reason) for state in registry.report()} == {
        "probe": (False, reason),
        "other": (True, ""),
    }
    assert hook.calls == calls


def test_a_missing_part_costs_the_part(registry: HookRegistry) -> None:
    """A hook that lacks what only a detail needs is installed, and says what is lost; one of several ways is enough."""
    gone, there = Requirement(Host, "gone"), Requirement(Host, "schedule")
    parts = [
        Part("queue", "time in the queue", (there, gone)),
        Part("steps", "what a step is", (AnyOf((gone, there)),)),
    ]
    assert registry.install(Probe(requires=[there, *parts]))
    lost = MissingPart("queue", "time in the queue", "Host.gone is missing")
    assert registry.report()[0].missing == (lost,)
    snapshot = Snapshot()
    registry.fill(snapshot)
    (row,) = snapshot.hooks[0].missing_parts
    assert (row.name, row.lost, row.reason) == ("queue", "time in the queue", "Host.gone is missing")


def test_a_hook_that_this_engine_would_not_use(registry: HookRegistry) -> None:
    """It says so where it does not fit, before and after it is tried; one that is installed or disabled says what it did."""
    unfit = [Requirement(Host, "no_such_method")]
    assert not registry.install(Probe("unfit", requires=unfit))
    registry.excuse("unfit", "later", "off", "fits")
    assert not registry.install(Probe("later", requires=unfit))
    assert not registry.install(Probe("off", requires=unfit), {"off"})
    assert not registry.install(Probe("missed", requires=unfit))
    assert registry.install(Probe("fits"))
    begins = {state.name: state.reason.partition(":")[0] for state in registry.report()}
    assert begins.pop("missed").startswith("Host.no_such_method")
    assert begins == {
        "unfit": NOT_USED,
        "later": NOT_USED,
        "off": "disabled by PENSTOCK_HOOKS_DISABLED",
        "fits": "",
    }


def test_a_hook_that_is_left_out_has_no_parts(registry: HookRegistry) -> None:
    """What is missing is all of it; a disabled one says only that."""
    gone = Requirement(Host, "gone")
    registry.install(Probe(requires=[gone, Part("queue", "time in the queue", (gone,))]))
    registry.install(Probe("off", requires=[Part("queue", "time in the queue", (gone,))]), {"off"})
    assert [(state.installed, state.missing) for state in registry.report()] == [(False, ()), (False, ())]


def test_uninstall_all_goes_backwards(registry: HookRegistry) -> None:
    """What was installed last is taken out first; an error in one does not keep the others in."""
    order: list[str] = []

    class Noisy(Probe):
        def uninstall(self) -> None:
            order.append(self.name)
            raise ValueError

    for name in "abc":
        registry.install(Noisy(name))
    registry.uninstall_all()
    assert order == ["c", "b", "a"]
    assert not any(state.installed for state in registry.report())
    assert guard.counts.drain()[("hook.a", "ValueError")] == 1


def test_report_is_in_the_snapshot(registry: HookRegistry) -> None:
    """Every hook's state is in the snapshot, by name."""
    registry.install(Probe("b"))
    registry.install(Probe("a"), {"a"})
    snapshot = Snapshot()
    registry.fill(snapshot)
    assert [(hook.name, hook.component, hook.installed) for hook in snapshot.hooks] == [
        ("a", COMPONENT_SCHEDULER, False),
        ("b", COMPONENT_SCHEDULER, True),
    ]
