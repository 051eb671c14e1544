"""Options of a program: flags over environment over a TOML file. Pure, but for the file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.agent.errors import ConfigError
from penstock.agent.parsing.quantities import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


AGENT_PREFIX = "PENSTOCK_AGENT_"
MAX_FILE_BYTES = 1 << 20
"""Of a file of options, which has some hundred lines."""


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: ``--name``, the variable of *prefix* and its name, and ``name`` in the file.

    ``parse`` raises ValueError with what was expected. Of ``many`` the flag may come
    several times, and the file may have a list; with commas between them it is one text.
    """

    name: str
    default: str
    parse: Callable[[str], Any]
    help: str
    many: bool = False
    prefix: str = AGENT_PREFIX

    @property
    def attribute(self) -> str:
        """The name in what :func:`read_options` returns."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return self.prefix + self.attribute.upper()


def parse_seconds(text: str) -> float:
    """Parse a duration (``500ms``, ``10s``, ``1h30m``, ``1d``) into seconds."""
    try:
        return parse_duration(text).total_seconds()
    except ValueError:
        raise ValueError("expected a duration like 10s, 5m or 1h30m") from None


def parse_positive(text: str) -> float:
    """Parse a duration that is more than nothing."""
    seconds = parse_seconds(text)
    if not seconds:
        raise ValueError("expected more than 0; for a very long time write 365d")
    return seconds


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


def parse_optional_path(text: str) -> Path | None:
    """Parse a path that need not be given, nor exist yet."""
    if "\0" in text:
        raise ValueError("expected a path")
    return Path(text).absolute() if text else None


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser that takes one of *words*."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return text

    return parse


def read_options(
    options: tuple[Option, ...], flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the values of *options* by attribute.

    Args:
        options: of one program, with one prefix.
        flags: text by option name, None where not given; ``config`` names the file.
        environment: the process's environment.

    Raises:
        ConfigError: one sentence that names where the value comes from, the value and what was expected.

    """
    source = flags.get("config") or environment.get(options[0].prefix + "CONFIG")
    table = _read_file(options, Path(source)) if source else {}
    values: dict[str, Any] = {}
    for option in options:
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
    return values


def _read_file(options: Iterable[Option], path: Path) -> dict[str, str]:
    """Read the options of a TOML file as text.

    Raises:
        ConfigError: it cannot be read, is not TOML, has an unknown key, or a value that is no text or number.

    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise ConfigError(
                f"--config {str(path)!r} has more than {MAX_FILE_BYTES} bytes; give another file"
            )
        table = tomllib.loads(text.decode())
    except OSError as error:
        raise ConfigError(f"--config {str(path)!r} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"--config {str(path)!r} is not TOML: {error}") from error
    names = [option.name for option in options]
    lists = {option.name for option in options if option.many}
    for key, value in table.items():
        if key not in names:
            raise ConfigError(f"{key!r} in {path} is not an option; the options are {', '.join(names)}")
        if key in lists and isinstance(value, list) and all(isinstance(item, str) for item in value):
            table[key] = ",".join(value)
        elif isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(
                f"{key} in {path} is {value!r}; write it as a string, as you would after --{key}"
            )
    return {key: str(value) for key, value in table.items()}
