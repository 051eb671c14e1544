"""The command ``penstock-agent``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from penstock.agent.daemon.config import ENVIRONMENT_PREFIX, OPTIONS, resolve
from penstock.agent.errors import DamageError, PenstockError, StateError
from penstock.proto import DISTRIBUTION, __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.agent.daemon.config import Config
    from penstock.agent.server import TcpAddress

_WRONG_USE = 2
_HELP = {"help_option_names": ["-h", "--help"]}


def _options() -> list[click.Parameter]:
    options: list[click.Parameter] = [
        click.Option(
            [f"--{option.name}"],
            metavar="VALUE",
            multiple=option.many,
            help=f"{option.help}  [default: {option.default}]" if option.default else option.help,
        )
        for option in OPTIONS
    ]
    return [*options, click.Option(["--config"], metavar="FILE", help="A TOML file with these options.")]


def _resolve(flags: dict[str, Any]) -> Config:
    return resolve({name.replace("_", "-"): _text(value) for name, value in flags.items()}, os.environ)


def _command() -> click.Command:
    group = click.Group(
        "penstock-agent",
        params=_options(),
        callback=_run,
        invoke_without_command=True,
        help="The Penstock daemon. Precedence: flags, PENSTOCK_AGENT_* variables, --config file.",
        context_settings=_HELP,
    )
    group.add_command(
        click.Command(
            "check",
            params=_options(),
            callback=_check,
            help="Check the configuration, paths and the trace endpoint without starting.",
            context_settings=_HELP,
        )
    )
    group.add_command(
        click.Command(
            "backup",
            params=[click.Argument(["path"]), *_options()],
            callback=_backup,
            help="Copy journal and policies to PATH, a new directory, from the running agent "
            "or, if none runs, from --state-dir. An agent can start on the copy.",
            context_settings=_HELP,
        )
    )
    return click.version_option(__version__, message=f"penstock-agent %(version)s ({DISTRIBUTION})")(group)


@click.pass_context
def _run(context: click.Context, /, **flags: Any) -> None:
    if context.invoked_subcommand is not None:
        # Flags may stand before the word and after it.
        context.obj = flags
        return
    config = _resolve(flags)
    # The daemon's imports take most of a second; --version and a wrong flag need none of them.
    from penstock.agent.daemon.logs import configure_logging  # noqa: PLC0415
    from penstock.agent.daemon.run import run  # noqa: PLC0415

    configure_logging(config.log_format, config.log_level)
    try:
        asyncio.run(run(config))
    except Exception as error:
        # A restart repairs damage; idling would not.
        if config.on_fatal != "idle" or isinstance(error, DamageError):
            raise
        _idle(error, config)


def _merged(context: click.Context, flags: dict[str, Any]) -> Config:
    given = {name: value for name, value in flags.items() if value}
    return _resolve({**(context.obj or {}), **given})


@click.pass_context
def _check(context: click.Context, /, **flags: Any) -> int:

    from penstock.agent.daemon.config_check import check_config  # noqa: PLC0415

    findings = check_config(_merged(context, flags))
    for finding in findings:
        click.echo(f"{'wrong' if finding.wrong else 'ok':>5}  {finding.text}")
    return _WRONG_USE if any(finding.wrong for finding in findings) else 0


@click.pass_context
def _backup(context: click.Context, /, path: str, **flags: Any) -> None:
    from penstock.agent.daemon.backup_command import request_backup  # noqa: PLC0415

    config = _merged(context, flags)
    target = Path(path).absolute()
    size = request_backup(config.admin_listen, config.state_dir, target)
    click.echo(f"{target}: {size} bytes")


def _idle(error: BaseException, config: Config | None) -> None:
    """Do what ``--on-fatal=idle`` asks for: serve the reason instead of an exit."""
    reason = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    asyncio.run(_wait_idle(reason, None if config is None else config.http))


async def _wait_idle(reason: str, http: TcpAddress | None) -> None:
    """Wait for SIGTERM or SIGINT; health and metrics answer 503 with *reason*, if the port is free."""
    # As the daemon's: --version and a wrong flag need none of them.
    import structlog  # noqa: PLC0415
    from penstock.agent.aio import stop_event  # noqa: PLC0415
    from penstock.agent.server.http_server import HttpServer  # noqa: PLC0415

    log = structlog.get_logger(__name__)
    stop = stop_event()
    log.critical("agent idle: it cannot start or continue; engines serve without it", reason=reason)

    def render(_accept: str) -> tuple[bytes, str]:
        raise StateError(reason)

    server = None if http is None else HttpServer(http, render, lambda: reason, str)
    try:
        if server is not None:
            await server.start()
    except StateError as error:
        log.warning("the health endpoint is not served", error=str(error))
        server = None
    await stop.wait()
    if server is not None:
        await server.stop()


def _wants_idle(arguments: Sequence[str]) -> bool:
    """Return whether a start that fails before its configuration is known must idle."""
    if {"check", "backup"} & set(arguments):
        return False
    flags = " ".join(arguments).replace("--on-fatal ", "--on-fatal=").split()
    given = [flag.partition("=")[2] for flag in flags if flag.startswith("--on-fatal=")]
    return (given or [os.environ.get(f"{ENVIRONMENT_PREFIX}ON_FATAL", "")])[-1] == "idle"


def _text(value: str | tuple[str, ...] | None) -> str | None:
    """Return a flag as one text; None where it was not given."""
    return (",".join(value) or None) if isinstance(value, tuple) else value


def main() -> None:
    """Run the agent until SIGTERM; exit code 2 with one sentence where it cannot start."""
    try:
        code = _command().main(standalone_mode=False)
    except click.ClickException as error:
        text = f"{error.format_message().rstrip('.')}; see penstock-agent --help"
        _fail(text, error)
    except PenstockError as error:
        _fail(str(error), error)
    sys.exit(code or 0)


def _fail(text: str, error: Exception) -> None:
    sys.stderr.write(f"penstock-agent: {text}\n")
    sys.stderr.flush()
    if _wants_idle(sys.argv[1:]) and not isinstance(error, DamageError):
        _idle(error, None)
    sys.exit(_WRONG_USE)
