"""``penstock-agent check``: does this configuration work here, without starting anything."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.errors import ConfigError, FilesError
from penstock.agent.policy.files import read_files, scan_directory
from penstock.agent.policy.files.parse import parse_files as check_files
from penstock.agent.server import UnixAddress
from penstock.agent.server.tls import Certificates
from penstock.agent.state import find_foreign_link, is_writable_by_others
from penstock.agent.traces.export.otlp_client import OtlpClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.daemon.config import Config


class CheckResult(NamedTuple):
    """One line of the result; ``wrong`` prevents a start."""

    text: str
    wrong: bool = False


def check_config(config: Config) -> list[CheckResult]:
    """Check what a start would need. Nothing is created, bound or connected to."""
    return [
        *_directory(config),
        *_sockets(config),
        *_certificates(config),
        *_policies(config),
        *_export(config),
    ]


def _directory(config: Config) -> Iterator[CheckResult]:
    try:
        config.state_dir.exists()
    except OSError as error:
        yield CheckResult(f"--state-dir {config.state_dir}: {error.strerror}", wrong=True)
        return
    place = _existing(config.state_dir)
    if not place.is_dir():
        yield CheckResult(f"--state-dir {config.state_dir}: {place} is no directory", wrong=True)
        return
    if not os.access(place, os.W_OK | os.X_OK):
        yield CheckResult(
            f"--state-dir {config.state_dir}: {place} cannot be written by user {os.geteuid()}", wrong=True
        )
        return
    if link := find_foreign_link(config.state_dir):
        yield CheckResult(f"--state-dir {config.state_dir}: {link} is a symbolic link; remove it", wrong=True)
    if place == config.state_dir and is_writable_by_others(place):
        yield CheckResult(
            f"--state-dir {config.state_dir}: other users can write to it and the agent cannot change its mode; "
            "use a subdirectory"
        )
    free = shutil.disk_usage(place).free
    if free < config.state_limit:
        yield CheckResult(
            f"--state-limit is {config.state_limit} bytes, the disk of {place} has {free} left: "
            "it may fill before the limit holds"
        )
    else:
        yield CheckResult(f"--state-dir {config.state_dir}: can be written")


def _sockets(config: Config) -> Iterator[CheckResult]:
    admin = [("--admin-listen", address) for address in config.admin_listen]
    for flag, address in (("--listen", config.listen), *admin):
        if not isinstance(address, UnixAddress):
            who = "names on the allow-list" if flag == "--admin-listen" else "every client that can connect"
            yield CheckResult(f"{flag} {address}: TCP, {who} can write")
            continue
        place = _existing(address.path.parent)
        writable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
        yield CheckResult(
            f"{flag} {address}: can be made"
            if writable
            else f"{flag} {address}: {place} cannot be written by user {os.geteuid()}",
            wrong=not writable,
        )


def _certificates(config: Config) -> Iterator[CheckResult]:
    if config.admin_tls is None:
        return
    try:
        Certificates(config.admin_tls)
    except ConfigError as error:
        yield CheckResult(str(error), wrong=True)
        return
    yield CheckResult(f"--admin-tls-cert {config.admin_tls.cert}: fits its key")


def _policies(config: Config) -> Iterator[CheckResult]:
    for spec in config.policy_sources:
        if spec.kind == "file":
            flag = "--policy-file" if Path(spec.place) == config.policy_file else "--policy-source"
            yield _files(flag, Path(spec.place))
        else:
            yield CheckResult(f"--policy-source {spec.name}: read when the agent runs")


def _files(flag: str, path: Path) -> CheckResult:
    try:
        found = read_files(scan_directory(path))
        policies = check_files(found, (), datetime.now(UTC)).policies
    except (FilesError, OSError) as error:
        return CheckResult(f"{flag} {path}: {error}", wrong=True)
    return CheckResult(f"{flag} {path}: {len(policies)} policies")


def _export(config: Config) -> Iterator[CheckResult]:
    settings = config.export
    yield from (CheckResult(sentence) for sentence in settings.unused)
    if not settings.endpoint:
        yield CheckResult("traces: no OTEL_EXPORTER_OTLP_ENDPOINT, so they go nowhere")
        return
    try:
        OtlpClient(settings).close()
    except ConfigError as error:
        yield CheckResult(str(error), wrong=True)
        return
    yield CheckResult(f"traces: to {settings.shown_endpoint} over {settings.protocol}")
    if settings.sampler_ratio < 1:
        yield CheckResult(
            f"traces: {settings.sampler} at {settings.sampler_ratio:g} where no policy sets traceSampleRatio;"
            " failed, recomputed and long-deferred requests always"
        )


def _existing(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    return next(place for place in (path, *path.parents) if _is_there(place))


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # A place that may not be looked into, or a name that is too long: what is above it tells.
        return False
