"""Manifests from files, directories or standard input: YAML or JSON, several documents, and lists."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import yaml
from penstock.agent.ctl.failure import WrongUseError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

_MAX_CHARACTERS = 4 * 1024 * 1024
_SUFFIXES = (".json", ".yaml", ".yml")
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


class _Loader(yaml.SafeLoader):
    """YAML as JSON knows it: moments stay text, and no key comes twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own shape)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for index, key in enumerate(keys) if key in keys[:index]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                problem=f"{twice!r} is there twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep=deep)


class Written(NamedTuple):
    """A manifest as somebody wrote it.

    Attributes:
        text: JSON, without the ``status`` that ``get policy`` adds.
        name: its own, empty if it has none that could be one.
        where: the file that it is in.

    """

    text: str
    name: str
    where: str


def read_paths(paths: Iterable[str]) -> list[Written]:
    """Return the manifests of files, of the ``*.yaml``, ``*.yml`` and ``*.json`` of directories, and of ``-``.

    Raises:
        WrongUseError: one cannot be read, is not YAML, holds no manifest, or names a policy that another names too.

    """
    found = [manifest for path in paths for manifest in _read_path(path)]
    by_name: dict[str, Written] = {}
    for manifest in found:
        other = by_name.setdefault(manifest.name, manifest)
        if manifest.name and other is not manifest:
            raise WrongUseError(
                f"policy {manifest.name!r} is written twice, in {other.where} and in {manifest.where}; keep one"
            )
    return found


def _read_path(path: str) -> list[Written]:
    place = Path(path)
    try:
        if path == "-":
            return _manifests(sys.stdin, "<stdin>")
        if not place.is_dir():
            with place.open(encoding="utf-8") as stream:
                return _manifests(stream, path)
        # What begins with a dot is not meant: editors and mounted ConfigMaps have such.
        files = sorted(
            file for file in place.iterdir() if file.suffix in _SUFFIXES and not file.name.startswith(".")
        )
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUseError(f"{path!r} cannot be read: {getattr(error, 'strerror', error)}") from None
    if not files:
        raise WrongUseError(f"directory {path!r} holds no file that ends in {', '.join(_SUFFIXES)}")
    return [manifest for file in files for manifest in _read_path(str(file))]


def _manifests(stream: IO[str], where: str) -> list[Written]:
    text = stream.read(_MAX_CHARACTERS + 1)
    if len(text) > _MAX_CHARACTERS:
        raise WrongUseError(f"{where} has more than {_MAX_CHARACTERS} characters; split it")
    try:
        documents = [item for item in yaml.load_all(text, _Loader) if item is not None]
    except yaml.YAMLError as error:
        raise WrongUseError(f"{where} is not YAML: {_problem(error)}") from None
    except RecursionError:
        raise WrongUseError(f"{where} is nested too deeply for a manifest") from None
    manifests: list[Any] = []
    for document in documents:
        is_list = isinstance(document, dict) and document.get("kind") == "List"
        manifests += document.get("items") or [] if is_list else [document]
    if not manifests:
        raise WrongUseError(f"{where} holds no manifest; write one, or see 'agentctl get policy -o yaml'")
    return [_written(manifest, where) for manifest in manifests]


def _written(manifest: Any, where: str) -> Written:
    name = ""
    if isinstance(manifest, dict):
        manifest = {key: value for key, value in manifest.items() if key != "status"}
        metadata = manifest.get("metadata")
        name = str(metadata.get("name") or "") if isinstance(metadata, dict) else ""
    try:
        return Written(json.dumps(manifest), name, where)
    except (TypeError, ValueError, RecursionError) as error:
        raise WrongUseError(f"{where} holds what JSON cannot say ({error}); quote the value") from None


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())
