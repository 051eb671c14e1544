"""Named addresses with TLS files: the contexts file, and how its values meet flags and environment."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.agent.ctl.errors import UsageError

if TYPE_CHECKING:
    import grpc

DEFAULT_ADDRESS = "unix:///run/penstock/admin.sock"
FILE_VARIABLE = "PENSTOCK_CONTEXTS"
_CURRENT, _CONTEXTS = "current-context", "contexts"
_ADDRESS = re.compile(r"unix:(//)?/.+|/.+|\[.+\]:\d{1,5}|[^/:\[\]]+:\d{1,5}")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The TLS files of one client; :meth:`credentials` reads them.

    Attributes:
        ca: CA bundle for the agent's certificate.
        cert: the client's certificate and chain; the agent's allow-list names its subject.
        key: private key of *cert*.
        server_name: name in the agent's certificate, if it differs from the address's host.

    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    def credentials(self, address: str) -> grpc.ChannelCredentials:
        """Read the files.

        Raises:
            UsageError: a file is missing or cannot be read.

        """
        import grpc  # noqa: PLC0415  (the command line's help does without it)

        files = {"--tls-ca": self.ca, "--tls-cert": self.cert, "--tls-key": self.key}
        missing = [flag for flag, path in files.items() if not path]
        if missing:
            raise UsageError(
                f"address {address} is TCP, which requires certificates; "
                f"give {' and '.join(missing)}, or the unix socket"
            )
        ca, cert, key = (_read_pem(flag, path) for flag, path in files.items())
        return grpc.ssl_channel_credentials(ca, key, cert)

    def channel_options(self) -> list[tuple[str, Any]]:
        """Return the channel options of these settings."""
        return [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []


def _read_pem(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{flag} {path!r} cannot be read ({error.strerror}); name a PEM file") from None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An agent's address, and the TLS files for it; empty where nothing is given."""

    address: str = ""
    tls: ClientTls = field(default_factory=ClientTls)

    def document(self) -> dict[str, str]:
        """Return the fields that are set, as the contexts file names them."""
        values = {"address": self.address, **{key: getattr(self.tls, name) for key, name in _TLS.items()}}
        return {key: value for key, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class Contexts:
    """The content of the contexts file.

    Attributes:
        current: the context that holds if none is named; empty for none.

    """

    current: str = ""
    endpoints: dict[str, Endpoint] = field(default_factory=dict)


_TLS = {f"tls-{item.name.replace('_', '-')}": item.name for item in fields(ClientTls)}
_FIELDS = ("address", *_TLS)
_FILES = frozenset(_FIELDS) - {"address", "tls-server-name"}


def check_address(address: str) -> None:
    """Check the form of an agent's address.

    Raises:
        UsageError: it is neither a socket nor host:port.

    """
    if not _ADDRESS.fullmatch(address):
        raise UsageError(f"address {address!r} is not valid; write unix:///path/of/the/socket or host:port")


def contexts_path() -> Path | None:
    """Return the contexts file's path; None without a home directory."""
    if given := os.environ.get(FILE_VARIABLE):
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME")
    with suppress(RuntimeError):
        return (Path(base) if base else Path.home() / ".config") / "penstock" / "contexts.yaml"
    return None


def read_contexts(path: Path | None) -> Contexts:
    """Read the file; none is an empty one. Relative paths in it begin at its directory.

    Raises:
        UsageError: others may write the file, it cannot be read, or it has a field that is not known.

    """
    if path is None:
        return Contexts()
    try:
        with path.open(encoding="utf-8") as stream:
            if os.fstat(stream.fileno()).st_mode & _WRITABLE_BY_OTHERS:
                raise UsageError(f"{path} may be written by others; run chmod go-w {path}")
            text = stream.read()
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None
    from penstock.agent.parsing.yaml_documents import DocumentError, read_documents  # noqa: PLC0415  (it needs YAML)

    try:
        documents = read_documents(text)
    except DocumentError as error:
        raise UsageError(f"{path}:{error.line}: {error}") from None
    if not documents:
        return Contexts()
    try:
        return parse_contexts(documents[0].value, path.parent)
    except ShapeError as error:
        raise UsageError(f"{path}:{documents[0].line_of(error.place)}: {error}") from None


class ShapeError(Exception):
    """A document is not one of contexts.

    Attributes:
        place: where, as field names.

    """

    def __init__(self, message: str, *place: str) -> None:
        super().__init__(message)
        self.place = place


def parse_contexts(document: Any, directory: Path) -> Contexts:
    """Return the content of a document; relative paths begin at *directory*.

    Raises:
        ShapeError: the document has another shape, or a field that is not known.

    """
    top = _mapping(document, (_CURRENT, _CONTEXTS))
    current = top.get(_CURRENT) or ""
    if not isinstance(current, str):
        raise ShapeError(f"{_CURRENT} is no text; quote it", _CURRENT)
    contexts = _mapping(top.get(_CONTEXTS) or {}, None, _CONTEXTS)
    return Contexts(current, {name: _endpoint(item, name, directory) for name, item in contexts.items()})


def _endpoint(item: Any, context: str, directory: Path) -> Endpoint:
    given = _mapping(item, _FIELDS, _CONTEXTS, context)
    for key, value in given.items():
        if not isinstance(value, str):
            raise ShapeError(f"{key} of context {context!r} is no text; quote it", _CONTEXTS, context, key)
        if key in _FILES and value:
            given[key] = str(directory / Path(value).expanduser())
    tls = ClientTls(**{name: given[key] for key, name in _TLS.items() if key in given})
    return Endpoint(given.get("address", ""), tls)


def _mapping(item: Any, known: tuple[str, ...] | None, *place: str) -> dict[str, Any]:
    where = ".".join(place) or "the file"
    fields = f"; its fields are {', '.join(known)}" if known else ""
    if not isinstance(item, dict):
        raise ShapeError(f"{where} is no mapping{fields}", *place)
    for name in item:
        if known is not None and name not in known:
            raise ShapeError(f"{where} has no field {name!r}{fields}", *place, name)
    return dict(item)


def write_contexts(path: Path | None, contexts: Contexts) -> None:
    """Replace the file, or the one that a link names; its mode is 0600, that of a new directory 0700.

    Raises:
        UsageError: it cannot be written.

    """
    import tempfile  # noqa: PLC0415  (commands that write no contexts do without it, as without YAML)

    from penstock.agent.ctl.yaml_text import dump_yaml  # noqa: PLC0415

    if path is None:
        raise UsageError(f"there is no home directory; name the contexts file in {FILE_VARIABLE}")
    document: dict[str, Any] = {_CURRENT: contexts.current} if contexts.current else {}
    document[_CONTEXTS] = {name: item.document() for name, item in sorted(contexts.endpoints.items())}
    try:
        path = Path(os.path.realpath(path))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(f"{dump_yaml(document)}\n")
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def merge(flags: Endpoint, environment: Endpoint, context: Endpoint, *, named: bool) -> Endpoint:
    """Return what holds, field by field: flags, environment, context.

    A context that a flag names (*named*) holds before the environment. The name in a certificate belongs to an
    address: that of a context counts only with the context's own address.
    """
    addresses = [item.address for item in _ordered(flags, environment, context, named=named)]
    address = next(filter(None, addresses), "")
    if address != context.address:
        context = replace(context, tls=replace(context.tls, server_name=""))
    layers = [item.tls for item in _ordered(flags, environment, context, named=named)]
    chosen = {
        name: next(filter(None, (getattr(layer, name) for layer in layers)), "") for name in _TLS.values()
    }
    return Endpoint(address or DEFAULT_ADDRESS, ClientTls(**chosen))


def _ordered(
    flags: Endpoint, environment: Endpoint, context: Endpoint, *, named: bool
) -> tuple[Endpoint, ...]:
    return (flags, context, environment) if named else (flags, environment, context)


def find_context(contexts: Contexts, name: str, path: Path | None) -> Endpoint:
    """Return the context *name*.

    Raises:
        UsageError: the file has no such context.

    """
    if name not in contexts.endpoints:
        known = ", ".join(sorted(contexts.endpoints)) or "none"
        raise UsageError(f"there is no context {name!r} in {path}; it has {known}")
    return contexts.endpoints[name]
