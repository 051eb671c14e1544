"""``agentctl version`` and ``completion``: the program itself."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click
from click.shell_completion import ShellComplete, get_completion_class
from penstock.agent.ctl.errors import FailedError
from penstock.agent.ctl.options import open_client, with_place
from penstock.agent.ctl.output import say_document
from penstock.agent.ctl.printing import is_table, say, with_output
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.version import __version__

_PROGRAM = "agentctl"
_SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog="\b\nbash   source <(agentctl completion bash)                in ~/.bashrc; bash 4.4 or newer\n"
    "zsh    source <(agentctl completion zsh)                 in ~/.zshrc, after compinit\n"
    "fish   agentctl completion fish | source                 in ~/.config/fish/config.fish"
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print completion script for SHELL: commands, options, engines, peers, policies."""
    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise FailedError(f"this version of click does not support {shell}; upgrade it")
    found = shell_class(click.get_current_context().find_root().command, {}, _PROGRAM, "_AGENTCTL_COMPLETE")
    # BashComplete.source checks the version of the local bash; the script may be for another machine.
    click.echo(ShellComplete.source(found))


@click.command()
@click.option("--client", "client_only", is_flag=True, help="Only the version of agentctl; asks no agent.")
@with_output()
@with_place
@click.pass_context
def version(context: click.Context, /, client_only: bool, output: str, **_: Any) -> None:
    """Print the versions of agentctl and of the agent."""
    versions = {"clientVersion": __version__}
    if is_table(output):
        say(f"Client version: {__version__}")
    if not client_only:
        with closing(open_client(context)) as client:
            versions["agentVersion"] = client.call("GetStatus", admin.GetStatusRequest()).version
        if is_table(output):
            say(f"Agent version: {versions['agentVersion']}")
    if not is_table(output):
        say_document(versions, output)
