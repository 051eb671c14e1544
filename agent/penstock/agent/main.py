"""The command ``penstock-agent``."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import click
from penstock.agent.config import OPTIONS, resolve
from penstock.agent.errors import PenstockError
from penstock.proto import __version__

_WRONG_USE = 2


def _command() -> click.Command:
    parameters: list[click.Parameter] = [
        click.Option(
            [f"--{option.name}"],
            metavar="VALUE",
            multiple=option.many,
            help=f"{option.help}  [default: {option.default}]" if option.default else option.help,
        )
        for option in OPTIONS
    ]
    parameters.append(click.Option(["--config"], metavar="FILE", help="A TOML file with these options."))
    command = click.Command(
        "penstock-agent",
        params=parameters,
        callback=_run,
        help="The daemon beside vLLM. Flags win over PENSTOCK_AGENT_* variables, those over the file.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return click.version_option(__version__, message="penstock-agent %(version)s")(command)


def _run(**flags: Any) -> None:
    config = resolve({name.replace("_", "-"): _text(value) for name, value in flags.items()}, os.environ)
    # gRPC's C core writes its own lines to standard error, between ours; whoever needs them can ask for them.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # The daemon's imports take most of a second; --version and a wrong flag need none of them.
    from penstock.agent.daemon import run  # noqa: PLC0415
    from penstock.agent.log import configure  # noqa: PLC0415

    configure(config.log_format, config.log_level)
    asyncio.run(run(config))


def _text(value: str | tuple[str, ...] | None) -> str | None:
    """Return a flag as one text; None where it was not given."""
    return (",".join(value) or None) if isinstance(value, tuple) else value


def main() -> None:
    """Run the agent until SIGTERM; exit code 2 with one sentence where it cannot start."""
    try:
        code = _command().main(standalone_mode=False)
    except click.ClickException as error:
        sys.stderr.write(f"penstock-agent: {error.format_message().rstrip('.')}; see penstock-agent --help\n")
        sys.exit(_WRONG_USE)
    except PenstockError as error:
        sys.stderr.write(f"penstock-agent: {error}\n")
        sys.exit(_WRONG_USE)
    sys.exit(code or 0)
