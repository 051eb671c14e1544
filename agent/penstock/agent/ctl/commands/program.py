"""``agentctl completion``: the shell completion script."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class
from penstock.agent.ctl.errors import FailedError

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
