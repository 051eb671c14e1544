"""What may import what: the rules of docs/architecture.md, read off the syntax trees."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
WIRE = frozenset({"google", "grpc"})


@dataclass(frozen=True)
class Rule:
    """What the files below a directory may import.

    Attributes:
        only: top-level packages besides the standard library and what ``penstock`` holds; None for any.
        penstock: subpackages of ``penstock``.

    """

    directory: str
    only: frozenset[str] | None
    penstock: frozenset[str]

    def allows(self, module: str) -> bool:
        """Whether a file of this rule may import *module*, by its full name."""
        top, _, rest = module.partition(".")
        if top == "penstock":
            return rest.partition(".")[0] in self.penstock
        return self.only is None or top in sys.stdlib_module_names or top in self.only


AGENT_EXTRA = frozenset(
    {
        *WIRE, "aiohttp", "backports", "click", "compression", "cryptography", "grpc_health", "opentelemetry", "prometheus_client", "pydantic",
        "pydantic_core", "structlog", "tomli", "typing_extensions", "yaml",
    }
)  # fmt: skip
# The longest directory that holds a file decides.
RULES = (
    Rule("proto/penstock", WIRE, frozenset({"proto"})),
    Rule("instrumentation/penstock", WIRE, frozenset({"proto", "instrumentation"})),
    Rule(
        "instrumentation/penstock/instrumentation/vllm",
        WIRE | {"vllm", "torch", "zmq", "numpy"},
        frozenset({"proto", "instrumentation"}),
    ),
    Rule("agent/penstock", AGENT_EXTRA, frozenset({"proto", "agent"})),
    # The demo looks at the agent from outside, as a person does.
    Rule("demo", None, frozenset()),
)


def rule_of(path: Path) -> Rule:
    """Return the rule for a file, given relative to the root."""
    matching = [rule for rule in RULES if path.is_relative_to(rule.directory)]
    return max(matching, key=lambda rule: len(rule.directory))


def imports(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, full module name) of every import, those inside functions and TYPE_CHECKING included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                yield node.lineno, ".".join([*parents, *([node.module] if node.module else [])])
            elif node.module == "penstock":
                yield from ((node.lineno, f"penstock.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module or ""


def breaches(rule: Rule, source: str, package: str) -> list[str]:
    """Return the imports of *source* that *rule* forbids."""
    return [f"line {line}: {module}" for line, module in imports(source, package) if not rule.allows(module)]


def sources() -> list[Path]:
    """Return all files of the three roots and the demo, relative to the root."""
    tops = ("proto", "instrumentation", "agent", "demo")
    return sorted(path.relative_to(ROOT) for top in tops for path in (ROOT / top).rglob("*.py"))


def package_of(path: Path) -> str:
    """Return the package that holds a file."""
    parts = path.parts if path.parts[0] == "demo" else path.parts[1:]
    return ".".join(parts[:-1])


def test_every_file_imports_what_it_may() -> None:
    """The engine part stays small, and agent and instrumentation stay apart."""
    found = {
        str(path): broken
        for path in sources()
        if (broken := breaches(rule_of(path), (ROOT / path).read_text(), package_of(path)))
    }

    assert found == {}


def test_the_files_are_found() -> None:
    """A rule without a file would prove nothing."""
    assert {rule_of(path) for path in sources()} == set(RULES)


@pytest.mark.parametrize("root", ["proto", "instrumentation", "agent"])
def test_the_namespace_has_no_init(root: str) -> None:
    """An __init__.py in one root would hide the other two."""
    assert (ROOT / root / "penstock").is_dir()
    assert not (ROOT / root / "penstock" / "__init__.py").exists()


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("agent/penstock/agent/x.py", "import penstock.instrumentation"),
        ("agent/penstock/agent/x.py", "from penstock import instrumentation"),
        ("agent/penstock/agent/x.py", "import torch"),
        ("instrumentation/penstock/instrumentation/x.py", "from penstock.agent.model import Source"),
        ("instrumentation/penstock/instrumentation/x.py", "def f():\n    import vllm.config"),
        ("instrumentation/penstock/instrumentation/x.py", "if TYPE_CHECKING:\n    import torch"),
        ("instrumentation/penstock/instrumentation/vllm/x.py", "import prometheus_client"),
        ("instrumentation/penstock/instrumentation/vllm/x.py", "from ...agent import model"),
        ("proto/penstock/proto/x.py", "from penstock.agent import model"),
        ("proto/penstock/proto/x.py", "import yaml"),
        ("demo/x.py", "from penstock.agent.model import Source"),
    ],
)
def test_a_forbidden_import_is_seen(path: str, source: str) -> None:
    """The rules can fail."""
    assert breaches(rule_of(Path(path)), source, package_of(Path(path)))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("agent/penstock/agent/x.py", "import aiohttp, asyncio\nfrom penstock.proto.v1 import common_pb2"),
        ("agent/penstock/agent/metrics/x.py", "from .fold import Fold\nfrom ..model import Source"),
        ("instrumentation/penstock/instrumentation/x.py", "import grpc\nfrom google.protobuf import message"),
        ("instrumentation/penstock/instrumentation/vllm/x.py", "import vllm, torch, zmq, numpy"),
        ("demo/x.py", "import vllm\nfrom demo.common.client import fetch"),
    ],
)
def test_an_allowed_import_is_not(path: str, source: str) -> None:
    """Nor do they fail for nothing."""
    assert breaches(rule_of(Path(path)), source, package_of(Path(path))) == []
