"""The entries of ``agentctl`` and of kubectl's plugin, and the table of commands.

Tables are for people. ``-o json`` and ``-o yaml`` print the wire's JSON mapping: camelCase names, label words for enum
values, RFC 3339 times, durations such as ``1.500s``. ``views/json_values.py`` has the rules and
docs/reference/agentctl.schema.json the shape. ``truncated`` beside a list means that it is incomplete.
``get policy`` prints manifests, with a ``status`` that ``apply`` ignores.
"""

from __future__ import annotations

import os
import sys

import click
from penstock.agent.ctl.connection.endpoint import with_connection
from penstock.agent.ctl.lazy_group import LazyGroup, RootGroup
from penstock.agent.views.command_lines import PLUGIN, PROGRAM
from penstock.proto.version import DISTRIBUTION, __version__

_PACKAGE = "penstock.agent.ctl.commands"
_INSPECT, _POLICIES, _ORDERS = (f"{_PACKAGE}.{room}" for room in ("inspect", "policies", "orders"))

_COMMANDS = {
    "set-policy": (f"{_POLICIES}.set", "Set fields of a policy by flags; create it if it does not exist."),
    "apply": (f"{_POLICIES}.apply", "Create or replace policies from a file."),
    "rollback": (f"{_POLICIES}.change", "Roll back a policy to an earlier revision."),
    "rollout": (
        f"{_POLICIES}.rollout",
        "Roll out a policy step by step; it aborts by itself if it does harm.",
    ),
    # Older spellings of "get policy --by-hand -o yaml" and "apply --atomic".
    "export": (f"{_POLICIES}.apply", "Print all policies as one document."),
    "import": (f"{_POLICIES}.apply", "Create or replace many policies in one change: all or none."),
    "trace": (f"{_INSPECT}.requests", "Show the spans of one request as a tree."),
    "explain": (f"{_INSPECT}.requests", "Explain in one sentence what happened to a request."),
    "what-if": (
        f"{_INSPECT}.costs",
        "Replay the recorded loads against other policies, and compare.",
    ),
    "recommend": (
        f"{_INSPECT}.recommend",
        "Search the policy under which the recorded loads would have done best.",
    ),
    "page": (f"{_INSPECT}.page", "Print the page's address, with a token; of a bundle, serve it."),
    "signals": (
        f"{_INSPECT}.signals",
        "Requests, time to first token, queue and bytes of the last 15 minutes.",
    ),
    "bill": (f"{_INSPECT}.costs", "Add up what failed loads, waits and recomputation cost."),
    "quarantine": (f"{_ORDERS}.quarantine", "Quarantined peers: list, add, lift."),
    "inject-fault": (f"{_ORDERS}.drill", "Start a fault drill in engines that allow it."),
    "drill": (f"{_ORDERS}.drill", "Running fault drills: list, stop."),
    "eject": (f"{_ORDERS}.eject", "Take a server out of rotation for a time: its readiness answers 503."),
    "drain": (f"{_ORDERS}.drain", "Wait until an engine can be ended: nothing of it is needed."),
    "pause": (f"{_ORDERS}.pause", "Make Penstock passive in engines: the kill switch."),
    "resume": (f"{_ORDERS}.pause", "Undo a pause."),
    "diagnose": (f"{_INSPECT}.diagnose", "Say what is wrong, the most harmful cause first."),
    "doctor": (f"{_INSPECT}.diagnose", "Find problems and print what to do about them."),
    "debug": (f"{_INSPECT}.engines", "Look into a running engine: the stacks of its threads."),
    "forget": (f"{_PACKAGE}.forget", "Forget a disconnected engine, or a peer."),
    "completion": (f"{_PACKAGE}.program", "Print a shell completion script."),
    "routers": (
        "penstock.agent.ctl.routers.command",
        "Show the state of endpoints for routers, or keep routers as it says.",
    ),
    "top": ("penstock.agent.ctl.top.command", "Live view of engines and peers."),
    "watch": (f"{_INSPECT}.events", "Print events as they come."),
    "bundle": (f"{_PACKAGE}.bundle", "Write the evidence of an agent into one file."),
    "config": (f"{_PACKAGE}.config", "Contexts: named addresses of agents."),
    "version": (f"{_PACKAGE}.program", "Versions of agentctl and of the agent."),
}
_HIDDEN = ("export", "import")

_SECTIONS = {
    "Inspect": (
        "top",
        "diagnose",
        "doctor",
        "get",
        "describe",
        "diff",
        "explain",
        "trace",
        "watch",
        "page",
        "what-if",
        "recommend",
        "signals",
        "bill",
        "debug",
    ),
    "Change policies": ("set-policy", "apply", "edit", "rollback", "rollout", "delete"),
    "Orders to engines": (
        "quarantine",
        "inject-fault",
        "drill",
        "eject",
        "drain",
        "routers",
        "pause",
        "resume",
    ),
    "Other": ("bundle", "forget", "config", "version", "completion"),
}

_GET = {
    "policy": (f"{_INSPECT}.policies", "Policies, or their merge in one engine (--effective)."),
    "engines": (f"{_INSPECT}.engines", "Engines: connected, policy in force, deferred requests."),
    "peers": (f"{_INSPECT}.peers", "Peers: transfers, failures, in flight."),
    "requests": (f"{_INSPECT}.requests", "Requests: outcome, or what they wait for."),
    "events": (f"{_INSPECT}.events", "Events of the log."),
    "audit": (f"{_INSPECT}.policies", "Audit log: who changed what, when and why."),
    "pairs": (
        f"{_INSPECT}.peers",
        "Pairs of engines: compatible, same weights, bytes/s against the usual.",
    ),
    "map": (
        f"{_INSPECT}.fleet_map:fleet_map",
        "Map: who sends state to whom, bytes/s, state; also for Graphviz and Mermaid.",
    ),
    "holders": (f"{_INSPECT}.engines", "Held KV blocks: by whom, for which peer, since when."),
    "suspects": (f"{_INSPECT}.requests", "Answers that may be wrong, and why."),
    "ejections": (f"{_INSPECT}.ejections", "Servers out of rotation, and what policies would take out."),
}

_DESCRIBE = {
    "engine": (f"{_INSPECT}.engines", "One engine, in full."),
    "peer": (f"{_INSPECT}.peers", "One peer, as each engine sees it."),
    "policy": (
        f"{_INSPECT}.policies:describe_policy",
        "One policy: content, where it is in force, its history.",
    ),
    "request": (f"{_INSPECT}.requests:explain", "What happened to one request, as 'explain' says it."),
}
_DIFF = {
    "policy": (f"{_INSPECT}.diff", "What changed in a policy, or what a file would change."),
    "engine": (f"{_INSPECT}.diff", "Compare two engines."),
}

# Cobra's directive: offer no file names.
_NO_FILES = ":4"


@click.group(
    "agentctl",
    cls=RootGroup,
    lazy=_COMMANDS,
    sections=_SECTIONS,
    hidden=_HIDDEN,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed or not found, 2 usage error; diff: 0 same, 1 different, more for an error.",
)
@with_connection
@click.version_option(__version__, message=f"agentctl %(version)s ({DISTRIBUTION})")
@click.pass_context
def cli(context: click.Context, /, **_: str) -> None:
    """Inspect and control the transfers of vLLM engines, through the agent beside them."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        context.color = False


@cli.group(cls=LazyGroup, lazy=_GET)
def get() -> None:
    """List engines, peers, pairs, the map, requests, events, policies, the audit log, held blocks, suspect answers, ejections."""


@cli.group(cls=LazyGroup, lazy=_DESCRIBE)
def describe() -> None:
    """Show an engine, a peer, a policy or a request in full."""


@cli.group(cls=LazyGroup, lazy=_DIFF)
def diff() -> None:
    """Show what changed in a policy, or compare two engines."""


@cli.group(cls=LazyGroup, lazy={"policy": (f"{_POLICIES}.edit", "Edit a policy.")})
def edit() -> None:
    """Change a policy in an editor."""


@cli.group(cls=LazyGroup, lazy={"policy": (f"{_POLICIES}.change:delete_policy", "Delete a policy.")})
def delete() -> None:
    """Delete a policy."""


def main(program: str = PROGRAM) -> None:
    """Run ``agentctl``; *program* is its name in messages and usage lines."""
    # gRPC logs to stderr; every error of agentctl is one sentence.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    cli.main(prog_name=program)


def kubectl_plugin() -> None:
    """Run ``kubectl penstock``."""
    main(PLUGIN)


def kubectl_complete() -> None:
    """Print what completes the command line in the arguments, as ``kubectl`` asks: one a line, then a directive."""
    from click.shell_completion import ShellComplete  # noqa: PLC0415  (only completion needs it)

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    *before, incomplete = sys.argv[1:] or [""]
    shell = ShellComplete(cli, {}, PLUGIN, "_KUBECTL_PENSTOCK_COMPLETE")
    for item in shell.get_completions(before, incomplete):
        help_text = " ".join((item.help or "").split())
        sys.stdout.write(f"{item.value}\t{help_text}\n" if help_text else f"{item.value}\n")
    sys.stdout.write(f"{_NO_FILES}\n")
