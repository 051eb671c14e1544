"""The hooks of the process: which are installed, and why the others are not.

A hook that does not fit this vLLM version is left out with a reason; the rest work.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from penstock.instrumentation.core import guard

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from penstock.instrumentation.hooks.requirements import Need
    from penstock.proto.v1.common_pb2 import Component
    from penstock.proto.v1.snapshot_pb2 import Snapshot

_REASON_MAX = 256


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

    def requires(self) -> Iterable[Need]:
        """Return its requirements; an ImportError or AttributeError counts as an unmet one."""
        ...

    def install(self) -> None:
        """Attach to vLLM. Called once until :meth:`uninstall`."""
        ...

    def uninstall(self) -> None:
        """Restore what :meth:`install` changed."""
        ...


@dataclass(frozen=True)
class HookState:
    """A hook as the snapshot reports it; *reason* is empty if it is installed."""

    name: str
    component: int
    installed: bool
    reason: str = ""


class HookRegistry:
    """All hooks of the process. Every method is idempotent and never raises."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._installed: dict[str, Hook] = {}
        self._states: dict[str, HookState] = {}

    def install(self, hook: Hook, disabled: Collection[str] = ()) -> bool:
        """Install *hook* unless it is installed, disabled or unfit; return whether it is installed now."""
        with self._lock:
            if hook.name in self._installed:
                return True
            reason = "disabled by PENSTOCK_HOOKS_DISABLED" if hook.name in disabled else self._attach(hook)
            if not reason:
                self._installed[hook.name] = hook
            self._states[hook.name] = HookState(hook.name, hook.component, not reason, reason[:_REASON_MAX])
            return not reason

    def uninstall(self, name: str) -> None:
        """Uninstall the hook of that name, if it is installed."""
        with self._lock:
            hook = self._installed.pop(name, None)
            if hook is None:
                return
            self._states[name] = HookState(name, hook.component, installed=False, reason="uninstalled")
            with guard(f"hook.{name}"):
                hook.uninstall()

    def uninstall_all(self) -> None:
        """Uninstall all hooks, the last installed first."""
        for name in reversed(list(self._installed)):
            self.uninstall(name)

    def report(self) -> tuple[HookState, ...]:
        """Return the state of every hook that :meth:`install` was called with, by name."""
        return tuple(sorted(self._states.copy().values(), key=lambda state: state.name))

    def fill(self, snapshot: Snapshot) -> None:
        """Add the report to *snapshot*."""
        for state in self.report():
            snapshot.hooks.add(
                name=state.name,
                component=cast("Component", state.component),
                installed=state.installed,
                reason=state.reason,
            )

    def reset_lock(self) -> None:
        """Make the lock anew: for a child after a fork, which inherits the hooks as they are."""
        self._lock = threading.RLock()

    @staticmethod
    def _attach(hook: Hook) -> str:
        """Install *hook*; return why it could not be, empty for success."""
        reason = unmet_requirements(hook)
        if reason:
            return reason
        try:
            hook.install()
        except Exception as error:  # noqa: BLE001  (a hook that fails leaves the rest at work)
            guard.record(f"hook.{hook.name}", error)
            with guard(f"hook.{hook.name}"):
                hook.uninstall()
            return f"{type(error).__name__}: {error}"
        return ""


def unmet_requirements(hook: Hook) -> str:
    """Return why *hook* does not fit this vLLM, empty if it does. Installs nothing; never raises."""
    try:
        return "; ".join(unmet for need in hook.requires() if (unmet := need.unmet()))
    except (ImportError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  (whatever vLLM's modules raise on import)
        guard.record(f"hook.{hook.name}", error)
        return f"{type(error).__name__}: {error}"


registry = HookRegistry()
