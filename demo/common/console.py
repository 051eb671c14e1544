"""Prints what the demos show: headings, paragraphs, metrics, and commands with their real output."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING

from demo.common.processes import children
from demo.common.progress import begin_phase, report
from demo.common.steps import StepError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from demo.common.agent import Agent
    from demo.common.metrics import Sample
    from demo.common.otlp_receiver import Receiver

_WIDTH = 100
_LOOK_SECONDS = 1.0


def say(text: str) -> None:
    """Print a line and flush."""
    print(text, flush=True)


def heading(text: str) -> None:
    """Print the heading of a step, with the time so far."""
    say("")
    begin_phase(text, mark="━━━ ")


def paragraph(text: str) -> None:
    """Print a paragraph, wrapped at 100 columns."""
    say(textwrap.fill(text, _WIDTH))


def samples(lines: Iterable[Sample]) -> None:
    """Print lines of a scrape."""
    for sample in lines:
        say(f"  {sample}")


def command_output(line: str, text: str) -> None:
    """Print a command and its output."""
    say(f"$ {line}")
    say(textwrap.indent(text, "  "))


def command(agent: Agent, *arguments: str) -> None:
    """Run agentctl and print its output.

    Raises:
        StepError: its exit code is not 0.

    """
    ran = agent.ctl(*arguments)
    if ran.code != 0:
        raise StepError(f"{ran.line} exited with {ran.code}: {ran.output}")
    command_output(ran.line, ran.output)


def trace_export(receiver: Receiver | None, traces: str, trace_id: str, spans: int) -> None:
    """Print where a trace was exported to, and its number of spans."""
    if receiver is None:
        paragraph(f"It was exported too: look up trace {trace_id} in the backend at {traces}.")
    else:
        paragraph(f"The OTLP backend of this demo ({traces}) holds {spans} spans of trace {trace_id}.")


def keep_running(hints: Iterable[tuple[str, str]]) -> NoReturn:
    """Print what may be tried and looked at, each behind its name, and wait for a signal; report processes that end."""
    heading("Everything keeps running until Ctrl-C")
    for name, hint in hints:
        say(f"  {name:<9} {hint}".rstrip())
    running = list(children())
    while True:
        time.sleep(_LOOK_SECONDS)
        for child in [child for child in running if not child.running]:
            running.remove(child)
            report(child.ended())
