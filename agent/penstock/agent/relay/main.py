"""The command ``penstock-relay``."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import click
from penstock.agent.errors import PenstockError
from penstock.agent.relay.config import OPTIONS, resolve
from penstock.proto import DISTRIBUTION, __version__

_WRONG_USE = 2


def _command() -> click.Command:
    options: list[click.Parameter] = [
        click.Option(
            [f"--{option.name}"],
            metavar="VALUE",
            multiple=option.many,
            help=f"{option.help}  [default: {option.default}]" if option.default else option.help,
        )
        for option in OPTIONS
    ]
    command = click.Command(
        "penstock-relay",
        params=[*options, click.Option(["--config"], metavar="FILE", help="A TOML file with these options.")],
        callback=_run,
        help="Serve the admin service of many agents at one address, for agentctl. "
        "Precedence: flags, PENSTOCK_RELAY_* variables, --config file.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return click.version_option(__version__, message=f"penstock-relay %(version)s ({DISTRIBUTION})")(command)


def _run(**flags: Any) -> None:
    given = {name.replace("_", "-"): _text(value) for name, value in flags.items()}
    config = resolve(given, os.environ)
    # --help and a wrong flag need none of them.
    from penstock.agent.daemon.logs import configure_logging  # noqa: PLC0415
    from penstock.agent.relay.run import run  # noqa: PLC0415

    configure_logging(config.log_format, config.log_level)
    asyncio.run(run(config))


def _text(value: str | tuple[str, ...] | None) -> str | None:
    return (",".join(value) or None) if isinstance(value, tuple) else value


def main() -> None:
    """Run the relay until SIGTERM; exit code 2 with one sentence where it cannot start."""
    try:
        _command().main(standalone_mode=False)
    except click.ClickException as error:
        _fail(f"{error.format_message().rstrip('.')}; see penstock-relay --help")
    except PenstockError as error:
        _fail(str(error))


def _fail(text: str) -> None:
    sys.stderr.write(f"penstock-relay: {text}\n")
    sys.exit(_WRONG_USE)
