"""``agentctl``: what people ask and tell the agent.

Tables are for people. With ``-o json`` or ``-o yaml`` names are those of the
wire's JSON mapping (camelCase), enum values are their label words, moments are
RFC 3339 and durations such as ``1.500s``; ``plain.py`` has the rules, and
docs/reference/agentctl.schema.json the shape. A list is the field of that
name, and ``truncated`` beside it says that it is not all.
``get policy`` prints manifests, with a ``status`` that ``apply`` ignores.
"""

from __future__ import annotations

import os

import click
from penstock.agent.ctl.lazy_group import LazyGroup, RootGroup
from penstock.agent.ctl.tls import ClientTls, with_tls
from penstock.proto.version import __version__

DEFAULT_ADDRESS = "unix:///run/penstock/admin.sock"
_PACKAGE = "penstock.agent.ctl.commands"

_COMMANDS = {
    "set-policy": (f"{_PACKAGE}.set_policy", "Set fields of a policy, by flags; creates it if need be."),
    "apply": (f"{_PACKAGE}.apply", "Create or replace policies from a file."),
    "rollback": (f"{_PACKAGE}.apply", "Make an earlier content of a policy its new generation."),
    "export": (f"{_PACKAGE}.bundle", "Print all policies as one document."),
    "import": (f"{_PACKAGE}.bundle", "Take many policies in one change: all or none."),
    "trace": (f"{_PACKAGE}.trace", "Show the spans of one request as a tree."),
    "explain": (f"{_PACKAGE}.trace", "Say in one sentence what happened to a request, and why."),
    "quarantine": (f"{_PACKAGE}.quarantine", "Peers that are cut off: list, add, lift."),
    "inject-fault": (f"{_PACKAGE}.drill", "Rehearse a fault in engines that allow it."),
    "drill": (f"{_PACKAGE}.drill", "Rehearsals that are running: list, stop."),
    "pause": (f"{_PACKAGE}.pause", "Make Penstock passive in engines: the kill switch."),
    "resume": (f"{_PACKAGE}.pause", "Undo a pause."),
    "doctor": (f"{_PACKAGE}.doctor", "Look for what is wrong, and say what to do."),
    "forget": (f"{_PACKAGE}.forget", "Forget an engine that has gone, or a peer."),
    "completion": (f"{_PACKAGE}.completion", "Make a shell complete commands and names."),
    "top": ("penstock.agent.ctl.top.command", "A live screen of engines and peers."),
    "watch": (f"{_PACKAGE}.watch", "Print events as they come."),
}

_SECTIONS = {
    "Look": ("top", "doctor", "get", "describe", "diff", "explain", "trace", "watch"),
    "Change policies": ("set-policy", "apply", "rollback", "delete", "export", "import"),
    "Orders to engines": ("quarantine", "inject-fault", "drill", "pause", "resume"),
    "Other": ("forget", "completion"),
}

_GET = {
    "policy": (f"{_PACKAGE}.get_policy", "Policies, or what they come to in one engine (--effective)."),
    "engines": (f"{_PACKAGE}.get", "Engines: connected, policy in force, what they wait for."),
    "peers": (f"{_PACKAGE}.get", "Peers: transfers, failures, in flight."),
    "requests": (f"{_PACKAGE}.get_requests", "Requests: what became of them, or which wait."),
    "events": (f"{_PACKAGE}.get", "Events of the log."),
    "audit": (f"{_PACKAGE}.get", "Who changed or ordered what, when and why."),
}


@click.group(
    "agentctl",
    cls=RootGroup,
    lazy=_COMMANDS,
    sections=_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 failed or not found, 2 wrong use.",
)
@click.option(
    "--address",
    envvar="AGENTCTL_ADDRESS",
    default=DEFAULT_ADDRESS,
    show_default=True,
    show_envvar=True,
    metavar="ADDRESS",
    help="The agent's admin socket, or host:port with the --tls options.",
)
@with_tls
@click.version_option(__version__, message="agentctl %(version)s")
@click.pass_context
def cli(context: click.Context, address: str, tls: ClientTls) -> None:
    """See and steer the transfers of vLLM engines, through the agent beside them."""
    context.obj = (address, tls)
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        context.color = False


@cli.group(
    cls=LazyGroup,
    lazy=_GET,
    aliases={
        "policies": "policy",
        "engine": "engines",
        "peer": "peers",
        "request": "requests",
        "event": "events",
    },
)
def get() -> None:
    """List engines, peers, requests, events, policies, the audit log."""


@cli.group(cls=LazyGroup, lazy={"engine": (f"{_PACKAGE}.describe", "One engine, in full.")})
def describe() -> None:
    """Show an engine in full, and why it has the policy that it has."""


@cli.group(
    cls=LazyGroup,
    lazy={
        "policy": (f"{_PACKAGE}.diff", "What changed in a policy, or what a file would change."),
        "engine": (f"{_PACKAGE}.diff", "What tells two engines apart."),
    },
)
def diff() -> None:
    """Say what changed in a policy, or what tells two engines apart."""


@cli.group(cls=LazyGroup, lazy={"policy": (f"{_PACKAGE}.apply:delete_policy", "Delete a policy.")})
def delete() -> None:
    """Delete a policy."""


def main() -> None:
    """Run ``agentctl``."""
    # gRPC's own log goes to the error stream, past all that says things in one sentence.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    cli.main(prog_name="agentctl")
