"""The hooks of the process: which are installed, and why the others are not.

A hook that does not fit this vLLM version is left out with a reason; the rest work. One that fits but for a detail works
without that.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, cast

from penstock.instrumentation.core import guard
from penstock.instrumentation.hooks.requirements import Part

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.instrumentation.hooks.requirements import Need
    from penstock.proto.v1.common_pb2 import Component
    from penstock.proto.v1.snapshot_pb2 import Snapshot

NOT_USED: Final = "not used by this engine"
"""How the reason begins of a hook that does not fit and that this engine would not use."""

_DISABLED: Final = "disabled by PENSTOCK_HOOKS_DISABLED"
_UNINSTALLED: Final = "uninstalled"
_REASON_MAX: Final = 256


class Hook(Protocol):
    """One place where Penstock attaches to vLLM.

    Attributes:
        name: as in ``penstock_hook_installed{hook}`` and ``PENSTOCK_HOOKS_DISABLED``.
        component: ``COMPONENT_*``, the part it observes.

    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def component(self) -> int: ...  # noqa: D102

    def requires(self) -> Iterable[Need | Part]:
        """Return its requirements and its parts; an ImportError or AttributeError counts as an unmet requirement."""
        ...

    def install(self) -> None:
        """Attach to vLLM. Called once until :meth:`uninstall`."""
        ...

    def uninstall(self) -> None:
        """Restore what :meth:`install` changed."""
        ...


@dataclass(frozen=True)
class MissingPart:
    """A detail that a hook does without.

    Attributes:
        name: the part's.
        lost: what is lost, in a user's words.
        reason: what this vLLM lacks.

    """

    name: str
    lost: str
    reason: str


@dataclass(frozen=True)
class Fit:
    """How a hook fits this vLLM.

    Attributes:
        unmet: why it does not; empty if it does.
        missing: the parts that it does without; empty if it does not fit.

    """

    unmet: str = ""
    missing: tuple[MissingPart, ...] = ()


@dataclass(frozen=True)
class HookState:
    """A hook as the snapshot reports it; *reason* is empty if it is installed."""

    name: str
    component: int
    installed: bool
    reason: str = ""
    missing: tuple[MissingPart, ...] = ()


class HookRegistry:
    """All hooks of the process. Every method is idempotent and never raises."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._installed: dict[str, Hook] = {}
        self._states: dict[str, HookState] = {}
        self._unused: frozenset[str] = frozenset()

    def install(self, hook: Hook, disabled: Collection[str] = ()) -> bool:
        """Install *hook* unless it is installed, disabled or unfit; return whether it is installed now."""
        with self._lock:
            if hook.name in self._installed:
                return True
            fit = Fit(_DISABLED) if hook.name in disabled else self._attach(hook)
            if not fit.unmet:
                self._installed[hook.name] = hook
            self._states[hook.name] = HookState(
                hook.name, hook.component, not fit.unmet, fit.unmet[:_REASON_MAX], fit.missing
            )
            return not fit.unmet

    def uninstall(self, name: str) -> None:
        """Uninstall the hook of that name, if it is installed."""
        with self._lock:
            hook = self._installed.pop(name, None)
            if hook is None:
                return
            self._states[name] = HookState(name, hook.component, installed=False, reason=_UNINSTALLED)
            with guard(f"hook.{name}"):
                hook.uninstall()

    def uninstall_all(self) -> None:
        """Uninstall all hooks, the last installed first."""
        for name in reversed(list(self._installed)):
            self.uninstall(name)

    def excuse(self, *names: str) -> None:
        """Note that this engine has no use for hooks of these names: where one does not fit, nothing is missing."""
        with self._lock:
            self._unused |= frozenset(names)

    def report(self) -> tuple[HookState, ...]:
        """Return the state of every hook that :meth:`install` was called with, by name."""
        return tuple(
            self._excused(state)
            for state in sorted(self._states.copy().values(), key=lambda state: state.name)
        )

    def _excused(self, state: HookState) -> HookState:
        if state.installed or state.name not in self._unused or state.reason in (_DISABLED, _UNINSTALLED):
            return state
        return replace(state, reason=f"{NOT_USED}: {state.reason}"[:_REASON_MAX])

    def fill(self, snapshot: Snapshot) -> None:
        """Add the report to *snapshot*."""
        for state in self.report():
            row = snapshot.hooks.add(
                name=state.name,
                component=cast("Component", state.component),
                installed=state.installed,
                reason=state.reason,
            )
            for part in state.missing:
                row.missing_parts.add(name=part.name, lost=part.lost, reason=part.reason[:_REASON_MAX])

    def reset_lock(self) -> None:
        """Make the lock anew: for a child after a fork, which inherits the hooks as they are."""
        self._lock = threading.RLock()

    @staticmethod
    def _attach(hook: Hook) -> Fit:
        """Install *hook* if it fits; return how it does."""
        fit = fit_of(hook)
        if fit.unmet:
            return fit
        try:
            hook.install()
        except Exception as error:  # noqa: BLE001  (a hook that fails leaves the rest at work)
            guard.record(f"hook.{hook.name}", error)
            with guard(f"hook.{hook.name}"):
                hook.uninstall()
            return Fit(f"{type(error).__name__}: {error}")
        return fit


def fit_of(hook: Hook) -> Fit:
    """Return how *hook* fits this vLLM. Installs nothing; never raises."""
    try:
        found = list(hook.requires())
        needs = [each for each in found if not isinstance(each, Part)]
        unmet = "; ".join(reason for need in needs if (reason := need.unmet()))
        if unmet:
            return Fit(unmet)
        parts = [each for each in found if isinstance(each, Part)]
        lost = [MissingPart(part.name, part.lost, reason) for part in parts if (reason := part.missing())]
        return Fit(missing=tuple(lost))
    except (ImportError, AttributeError) as error:
        return Fit(f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001  (whatever vLLM's modules raise on import)
        guard.record(f"hook.{hook.name}", error)
        return Fit(f"{type(error).__name__}: {error}")


registry = HookRegistry()
