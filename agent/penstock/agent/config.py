"""Configuration: flags over environment over a TOML file, checked once, frozen."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.agent.budget import MIB, MIN_LIMIT
from penstock.agent.errors import ConfigError
from penstock.agent.traces.settings import ExportSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ENVIRONMENT_PREFIX = "PENSTOCK_AGENT_"

# sockaddr_un.sun_path, without its closing zero.
_UNIX_PATH_BYTES = 107
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(MiB|GiB|TiB)")
_MIN_MEMORY = 128 * MIB
_BYTES = {"MiB": MIB, "GiB": MIB << 10, "TiB": MIB << 20}


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A unix socket; the path is absolute."""

    path: Path

    def __str__(self) -> str:
        """Return ``unix:///path``, the form that gRPC and people use."""
        return f"unix://{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return ``host:port``, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Address: TypeAlias = UnixAddress | TcpAddress


@dataclass(frozen=True, slots=True)
class Config:
    """All that the daemon is told.

    Attributes:
        state_limit: bytes that all files of the state directory may have together.
        memory_limit: resident bytes above which nothing is taken from engines.
        on_fatal: ``exit`` or ``idle``: what to do when the agent cannot start or go on.
        drain_deadline: seconds from SIGTERM to the end, at most.
        source_grace: seconds that a source may be away without a goodbye before it counts as lost.
        engines_expected: how many engines the pod has; 0 if not told.
        export: where spans go: the ``OTEL_*`` variables.
        pod_uid: ``POD_UID`` of the downward API; empty outside Kubernetes.

    """

    listen: Address
    admin_listen: UnixAddress
    http: TcpAddress
    state_dir: Path
    state_limit: int
    memory_limit: int
    drain_deadline: float
    source_grace: float
    log_format: str
    log_level: str
    engines_expected: int
    on_fatal: str
    export: ExportSettings
    pod_uid: str = ""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: ``--name``, ``PENSTOCK_AGENT_NAME`` and ``name`` in the file.

    ``parse`` raises ValueError with what was expected.
    """

    name: str
    default: str
    parse: Callable[[str], Any]
    help: str

    @property
    def attribute(self) -> str:
        """The field of :class:`Config`."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENVIRONMENT_PREFIX + self.attribute.upper()


def parse_tcp(text: str) -> TcpAddress:
    """Parse ``host:port`` or ``[v6]:port``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004
        raise ValueError("expected host:port, with a port from 0 to 65535")
    return TcpAddress(host, int(port))


def parse_address(text: str) -> Address:
    """Parse ``unix:///path`` or ``host:port``."""
    if not text.startswith("unix:"):
        try:
            return parse_tcp(text)
        except ValueError:
            raise ValueError("expected unix:///path or host:port") from None
    path = text.removeprefix("unix:")
    path = path.removeprefix("//") if path.startswith("///") else path
    if not path.startswith("/") or path.startswith("//") or path == "/":
        raise ValueError("expected unix:///path with an absolute path")
    if len(path.encode()) > _UNIX_PATH_BYTES:
        raise ValueError(f"a unix socket's path has at most {_UNIX_PATH_BYTES} bytes")
    return UnixAddress(Path(path))


def parse_admin(text: str) -> UnixAddress:
    """Parse the admin socket: unix only, because TCP would need mutual TLS."""
    address = parse_address(text)
    if isinstance(address, TcpAddress):
        raise ValueError("expected unix:///path, because the admin service is not offered over plain TCP")  # noqa: TRY004
    return address


def parse_duration(text: str) -> float:
    """Parse ``500ms``, ``10s``, ``1.5m`` or ``1h`` into seconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError("expected a number with ms, s, m or h, like 10s")
    return float(match[1]) * _SECONDS[match[2]]


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of sizes (``512MiB``, ``1GiB``, ``1.5TiB``) that takes *least* bytes or more."""

    def parse(text: str) -> int:
        match = _SIZE.fullmatch(text)
        size = int(float(match[1]) * _BYTES[match[2]]) if match is not None else 0
        if size < least:
            raise ValueError(f"expected {least // MIB}MiB or more, a number with MiB, GiB or TiB, like 1GiB")
        return size

    return parse


def parse_count(text: str) -> int:
    """Parse a number that is not negative."""
    if not text.isascii() or not text.isdigit():
        raise ValueError("expected a whole number, 0 or more")
    return int(text)


def parse_directory(text: str) -> Path:
    """Parse a directory's path; it need not exist yet."""
    if not text:
        raise ValueError("expected the path of a directory")
    return Path(text).absolute()


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser that takes one of *words*."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return text

    return parse


OPTIONS: tuple[Option, ...] = (
    Option(
        "listen",
        "unix:///run/penstock/ingest.sock",
        parse_address,
        "Where engines connect: unix:///path or host:port.",
    ),
    Option(
        "admin-listen",
        "unix:///run/penstock/admin.sock",
        parse_admin,
        "Where agentctl connects: unix:///path.",
    ),
    Option("http", "127.0.0.1:9464", parse_tcp, "Metrics and health: host:port."),
    Option("state-dir", "/var/lib/penstock", parse_directory, "Where the journal and the policies are kept."),
    Option(
        "state-limit",
        "1GiB",
        at_least(MIN_LIMIT),
        "How much disk the state may take; then the oldest of the log goes.",
    ),
    Option(
        "memory-limit",
        "512MiB",
        at_least(_MIN_MEMORY),
        "Above so much resident memory nothing is taken from engines, which keep it for later.",
    ),
    Option("drain-deadline", "10s", parse_duration, "How long SIGTERM may take."),
    Option("source-grace", "10s", parse_duration, "How long a source may be away before it counts as lost."),
    Option("log-format", "json", one_of("json", "console"), "json or console."),
    Option(
        "log-level", "info", one_of("debug", "info", "warning", "error"), "debug, info, warning or error."
    ),
    Option("engines-expected", "0", parse_count, "How many engines the pod has; 0 if not known."),
    Option(
        "on-fatal",
        "exit",
        one_of("exit", "idle"),
        "exit, or idle: wait for SIGTERM without serving, so that the pod is not restarted in a loop.",
    ),
)


def read_file(path: Path) -> dict[str, str]:
    """Read the options of a TOML file as text.

    Raises:
        ConfigError: it cannot be read, is not TOML, has an unknown key, or a value that is no text or number.

    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {str(path)!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {str(path)!r} is not TOML: {error}") from error
    names = [option.name for option in OPTIONS]
    for key, value in table.items():
        if key not in names:
            raise ConfigError(f"{key!r} in {path} is not an option; the options are {', '.join(names)}")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(
                f"{key} in {path} is {value!r}; write it as a string, as you would after --{key}"
            )
    return {key: str(value) for key, value in table.items()}


def resolve(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> Config:
    """Merge flags, environment and file.

    Args:
        flags: text by option name, None where not given; ``config`` names the file.
        environment: the process's environment.

    Raises:
        ConfigError: one sentence that names where the value comes from, the value and what was expected.

    """
    source = flags.get("config") or environment.get(ENVIRONMENT_PREFIX + "CONFIG")
    table = read_file(Path(source)) if source else {}
    values: dict[str, Any] = {}
    for option in OPTIONS:
        flag, variable = flags.get(option.name), environment.get(option.variable)
        if flag is not None:
            origin, text = f"--{option.name}", flag
        elif variable is not None:
            origin, text = option.variable, variable
        else:
            origin, text = f"{option.name} in {source}", table.get(option.name, option.default)
        try:
            values[option.attribute] = option.parse(text)
        except ValueError as error:
            raise ConfigError(f"{origin} {text!r} is wrong: {error}") from error
    if values["listen"] == values["admin_listen"]:
        raise ConfigError(
            f"--listen and --admin-listen are both {values['listen']}; give each a socket of its own"
        )
    return Config(
        **values,
        export=ExportSettings.from_environment(environment),
        pod_uid=environment.get("POD_UID", ""),
    )
