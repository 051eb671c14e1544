"""Where the policies of the fleet demo are: a Kubernetes API server, or NATS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from demo.common.agent import CommandResult
    from demo.common.processes import Child


class Run(Protocol):
    """Starts a process of the demo."""

    def __call__(self, name: str, command: list[str], environment: Mapping[str, str]) -> Child:
        """Start *command*; it ends with the demo."""


class Commands(Protocol):
    """Runs what a person would type."""

    def ctl(self, *arguments: str) -> CommandResult:
        """Run agentctl against the relay."""


class Place(Protocol):
    """Servers that hold the policies, and the commands that a person types to change and see them there.

    Attributes:
        choice: why it was taken, and how to take the other.
        change: what :meth:`changed` shows.

    """

    choice: str
    change: str

    def start(self, directory: Path, run: Run) -> None:
        """Start the servers below *directory*."""

    def prepared(self) -> Iterator[CommandResult]:
        """Prepare them for policies."""

    def options(self, program: str) -> tuple[str, ...]:
        """Return the options by which ``agent`` or ``relay`` follows it."""

    def changed(self, ctl: Commands) -> Iterator[CommandResult]:
        """Put the policy ``decode-default`` there, and wait until it is in force everywhere."""

    def led(self) -> Iterator[CommandResult]:
        """Show who leads."""

    def aborted(self, name: str) -> Iterator[CommandResult]:
        """Show the policy *name* after its roll-out was aborted."""

    def hint(self) -> str:
        """Return a command to type while the demo runs; empty for none."""
