"""Files that routers read: which endpoints are in, in the format of the reader; replaced as a whole."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.ctl.routers.endpoints import MAX_FILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.agent.ctl.routers.endpoints import EndpointState

    Render = Callable[[Mapping[str, EndpointState]], str]

FORMATS: Final = ("list", "json", "production-stack")
_MODE: Final = 0o644
_BACKENDS: Final = "static_backends"
# Of src/vllm_router/dynamic_config.py and service_discovery.py: element i of each is of backend i.
_BESIDE: Final = ("static_models", "static_model_labels", "static_model_types")


def read_text(path: str) -> str:
    """Return what a file has.

    Raises:
        ValueError: it cannot be read, or has too much.

    """
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"{path!r} has more than {MAX_FILE_BYTES} bytes")
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path!r} is no text in UTF-8") from None
    except OSError as error:
        raise ValueError(f"{path!r} cannot be read: {error.strerror}") from None


def as_list(urls: Iterable[str]) -> Render:
    """Return what writes the URLs that are in, one a line."""
    known = list(urls)
    return lambda out: "".join(f"{url}\n" for url in known if url not in out)


def as_json(urls: Iterable[str]) -> Render:
    """Return what writes the URLs that are in, and those that are out with the reason."""
    known = list(urls)

    def render(out: Mapping[str, EndpointState]) -> str:
        document = {
            "in": [url for url in known if url not in out],
            "out": [{"url": url, **out[url]._asdict()} for url in known if url in out],
        }
        return json.dumps(document, indent=2) + "\n"

    return render


def as_production_stack(urls: Iterable[str], base: str) -> Render:
    """Return what writes *base*, a dynamic configuration of the production stack's router in JSON, without what is out.

    Raises:
        ValueError: it is none with static backends, or lacks one of *urls*.

    """
    try:
        known: Any = json.loads(base)
    except (ValueError, RecursionError):
        raise ValueError(
            "the file of --base is no JSON; the router takes it by --dynamic-config-json"
        ) from None
    listed = known.get(_BACKENDS) if isinstance(known, dict) else None
    if not isinstance(listed, str):
        raise ValueError(  # noqa: TRY004  (a file's content)
            f"the file of --base has no {_BACKENDS}, a text of URLs with commas between them"
        )
    columns = {
        name: [each.strip() for each in known[name].split(",")]
        for name in (_BACKENDS, *_BESIDE)
        if isinstance(known.get(name), str)
    }
    backends = [url.rstrip("/") for url in columns[_BACKENDS]]
    for name, column in columns.items():
        if len(column) != len(backends):
            raise ValueError(f"the file of --base has {len(backends)} {_BACKENDS} and {len(column)} {name}")
    if missing := [url for url in urls if url not in backends]:
        raise ValueError(f"the file of --base has no {missing[0]} among its {_BACKENDS}")

    def render(out: Mapping[str, EndpointState]) -> str:
        kept = [number for number, url in enumerate(backends) if url not in out]
        changed = {name: ",".join(column[number] for number in kept) for name, column in columns.items()}
        return json.dumps({**known, **changed}, indent=2) + "\n"

    return render


class RouterFile:
    """A file that is replaced whenever another set of endpoints is in."""

    def __init__(self, path: str, render: Render, *, dry_run: bool = False) -> None:
        self.name = path
        self._path = Path(path)
        self._render = render
        self._dry_run = dry_run
        self._written: str | None = None
        self._problem = ""

    def apply(self, out: Mapping[str, EndpointState], _: float) -> list[str]:
        """Let all be in but those of *out*; return sentences about what has changed."""
        content = self._render(out)
        if content == self._written:
            return []
        if self._dry_run:
            self._written = content
            return [f"would write {self._path}"]
        try:
            _replace(self._path, content)
        except OSError as error:
            # The next look tries again.
            problem = f"{self._path} cannot be written: {error.strerror}; it stays as it is until it can"
            told = [problem] if problem != self._problem else []
            self._problem = problem
            return told
        self._written, self._problem = content, ""
        return []

    def restore(self) -> list[str]:
        """Let all be in; return sentences about what could not be done."""
        return [] if self._dry_run else self.apply({}, 0.0)


def _replace(path: Path, content: str) -> None:
    """Write a file beside *path* and give it its name: a reader sees the old content or the new one.

    Raises:
        OSError: it cannot be written.

    """
    # What a link points to is replaced, and not the link.
    place = Path(os.path.realpath(path))
    try:
        mode = stat.S_IMODE(place.stat().st_mode)
    except FileNotFoundError:
        mode = _MODE
    number, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        Path(name).replace(place)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
