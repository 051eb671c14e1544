"""How the demos talk: titles, sentences, metrics, and commands with what they really said."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from demo.steps import StepError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from demo.common.agent import Agent
    from demo.common.metrics import Sample
    from demo.common.otlp_receiver import Receiver

_WIDTH = 100


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def title(text: str) -> None:
    """Begin a step."""
    say(f"\n━━━ {text}")


def words(text: str) -> None:
    """Say a sentence or two, in lines of a readable width."""
    say(textwrap.fill(text, _WIDTH))


def samples(shown: Iterable[Sample]) -> None:
    """Show lines of a scrape."""
    for sample in shown:
        say(f"  {sample}")


def output(line: str, text: str) -> None:
    """Show a command and what it said."""
    say(f"$ {line}")
    say(textwrap.indent(text, "  "))


def command(agent: Agent, *arguments: str) -> None:
    """Run agentctl and show what it said.

    Raises:
        StepError: it did not end with 0.

    """
    ran = agent.ctl(*arguments)
    if ran.code != 0:
        raise StepError(f"{ran.line} ended with {ran.code}: {ran.output}")
    output(ran.line, ran.output)


def exported(receiver: Receiver | None, traces: str, trace_id: str, spans: int) -> None:
    """Say where a trace went, and how much of it."""
    if receiver is None:
        words(f"It was exported too: search trace {trace_id} in the backend behind {traces}.")
    else:
        words(f"The OTLP backend of this demo ({traces}) holds {spans} spans of trace {trace_id}.")
