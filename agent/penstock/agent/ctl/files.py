"""Manifests from a file or standard input: YAML or JSON, several documents, and lists."""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

import yaml
from penstock.agent.ctl.failure import WrongUseError

if TYPE_CHECKING:
    from collections.abc import Hashable

_MAX_BYTES = 4 * 1024 * 1024
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


def read_manifests(stream: IO[str], name: str) -> list[str]:
    """Return the manifests of a file as JSON texts, without the ``status`` that ``get policy`` adds.

    Raises:
        WrongUseError: it is not YAML, or holds no manifest.

    """
    text = stream.read(_MAX_BYTES + 1)
    if len(text) > _MAX_BYTES:
        raise WrongUseError(f"{name} has more than {_MAX_BYTES} characters; split it")
    try:
        documents = [item for item in yaml.load_all(text, _Loader) if item is not None]
    except yaml.YAMLError as error:
        raise WrongUseError(f"{name} is not YAML: {_problem(error)}") from None
    manifests: list[Any] = []
    for document in documents:
        is_list = isinstance(document, dict) and document.get("kind") == "List"
        manifests += document.get("items") or [] if is_list else [document]
    if not manifests:
        raise WrongUseError(f"{name} holds no manifest; write one, or see 'agentctl get policy -o yaml'")
    return [_text(manifest, name) for manifest in manifests]


def _text(manifest: Any, name: str) -> str:
    if isinstance(manifest, dict):
        manifest = {key: value for key, value in manifest.items() if key != "status"}
    try:
        return json.dumps(manifest)
    except (TypeError, ValueError) as error:
        raise WrongUseError(f"{name} holds what JSON cannot say ({error}); quote the value") from None


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())
