"""What the fleet demo shows, step by step."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from demo.common.console import command_output, heading, paragraph
from demo.common.steps import StepError, until
from demo.fleet.stack import ENGINES, PODS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from demo.common.agent import CommandResult
    from demo.fleet.stack import Stack

_ALL = len(PODS) * ENGINES
# By the hash of its name six of the engines of this demo are the first fifth.
_BAD = "fail-fast"


def play(stack: Stack) -> None:
    """Show a fleet from its start to a roll-out that aborts itself.

    Raises:
        StepError: something is not as it should be.

    """
    _start(stack)
    _change(stack)
    _hang(stack)
    _abort(stack)


def _start(stack: Stack) -> None:
    heading("Three pods, one source of policies, two relays")
    paragraph(
        f"{stack.place.choice} {len(PODS)} agents follow them, each with {ENGINES} simulated engines, which "
        "speak Penstock's real wire. Two relays ask all agents; agentctl asks a relay."
    )
    stack.start_place()
    _show_all(stack.place.prepared())
    stack.start_pods()
    stack.start_relays()
    until(lambda: len(_engines(stack)) == _ALL, "Not all engines are there")
    _show(stack, "get", "engines", lines=8)


def _change(stack: Stack) -> None:
    heading("One change, in force in every engine of every pod")
    paragraph(stack.place.change)
    _show_all(stack.place.changed(stack))
    found = _in_force(stack, "decode-default")
    if found != _ALL:
        raise StepError(f"The policy is in force in {found} of {_ALL} engines.")
    _show(stack, "get", "policy")


def _hang(stack: Stack) -> None:
    heading("An agent that hangs costs its own rows only")
    stack.signal(PODS[2], signal.SIGSTOP)
    try:
        until(
            lambda: "agents answered" in stack.ctl("get", "engines").output, "No list names the missing agent"
        )
        ran = stack.ctl("get", "engines")
        command_output(ran.line, "\n".join(["…", *ran.output.splitlines()[-3:]]))
    finally:
        stack.signal(PODS[2], signal.SIGCONT)
    until(lambda: len(_engines(stack)) == _ALL, "The agent did not come back")
    paragraph(f"{PODS[2]} goes on; all {_ALL} engines are listed again.")


def _abort(stack: Stack) -> None:
    heading("A bad policy aborts itself at its first step")
    paragraph(
        "It fails requests that could be recomputed. The relay that holds the lease puts it in force in a fifth of the "
        "engines, compares them with the others, and takes it back."
    )
    strict = ("--selector", "role=decode", "--priority", "200", "--kv-load-failure", "fail")
    _show(stack, "set-policy", _BAD, *strict, "--rollout-percent", "0", lines=2)
    plan = ("--steps", "20,100", "--hold", "1h", "--abort-if", "failed>2x")
    _show(stack, "rollout", "start", _BAD, *plan, "--reason", "demo", lines=4)
    share = stack.ctl_json("rollout", "status", _BAD)["enginesSelected"]
    until(lambda: _in_force(stack, _BAD) == share, "The first step is not in force")
    paragraph(f"It is in force in {share} of {_ALL} engines.")
    # Not before the leader is dead: it would abort the roll-out within a second.
    _kill_leader(stack)
    paragraph(
        "Now the KV of three requests in ten cannot be loaded. Engines with the policy fail them, the others recompute."
    )
    stack.break_loads()
    until(lambda: _state(stack) == "aborted", "The roll-out did not abort")
    _show(stack, "rollout", "status", _BAD)
    until(lambda: _in_force(stack, _BAD) == 0, "The policy was not taken back")
    _show_all(stack.place.aborted(_BAD))
    had = _that_had(stack, _BAD)
    if len(had) != share:
        raise StepError(f"{len(had)} engines had the policy, the first step selects {share}.")
    paragraph(
        f"By the agents' journals {share} engines had it, and {_ALL - share} never: {', '.join(sorted(had))}."
    )


def _kill_leader(stack: Stack) -> None:
    leader = until(stack.leader, "No relay holds the lease")
    _show_all(stack.place.led())
    stack.kill_relay(leader)
    paragraph(
        f"{leader}, which leads, is killed with SIGKILL. Its state is in the policy: {stack.relay} takes the lease over "
        "after 15 s and goes on at the same step."
    )


def _engines(stack: Stack) -> list[dict[str, object]]:
    found = stack.ctl_json("get", "engines").get("engines", [])
    return [engine for engine in found if engine.get("connected")]


def _in_force(stack: Stack, name: str) -> int:
    listed = stack.ctl_json("get", "policy")
    return sum(
        int(item["status"]["enginesInForce"]) for item in listed["items"] if item["metadata"]["name"] == name
    )


def _state(stack: Stack) -> str:
    ran = stack.ctl("rollout", "status", _BAD, "-o", "json")
    return "aborted" if ran.code == 0 and '"aborted"' in ran.output else ""


def _that_had(stack: Stack, name: str) -> set[str]:
    """Return the engines in whose agents' journals the policy was applied."""
    found = stack.ctl_json("get", "events", "--kind", "policy_applied", "--limit", "1000")
    return {
        f"{event['key'].get('server', '')}/{event['key'].get('engine', '')}"
        for event in found["events"]
        if f'"{name}"' in str(event).replace("'", '"')
    }


def _show(stack: Stack, *arguments: str, lines: int = 40) -> None:
    _print(stack.ctl(*arguments), lines)


def _show_all(commands: Iterable[CommandResult]) -> None:
    for ran in commands:
        _print(ran, 10)


def _print(ran: CommandResult, lines: int) -> None:
    if ran.code:
        raise StepError(f"{ran.line} exited with {ran.code}: {ran.output}")
    text = ran.output.splitlines()
    more = [f"… {len(text) - lines} more lines"] if len(text) > lines else []
    command_output(ran.line, "\n".join([*text[:lines], *more]))
