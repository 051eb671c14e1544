"""What may import what: libraries by directory, packages by floor and by face; read off the syntax trees."""

from __future__ import annotations

import ast
import graphlib
import sys
from dataclasses import dataclass
from functools import cache, cached_property
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
        *WIRE, "aiohttp", "backports", "click", "compression", "cryptography", "grpc_health", "nats", "opentelemetry", "prometheus_client", "pydantic",
        "pydantic_core", "structlog", "tomli", "typing_extensions", "yaml",
    }
)  # fmt: skip
# The longest directory that holds a file decides.
RULES = (
    Rule("proto/penstock", WIRE, frozenset({"proto"})),
    # The rules decide in the engine and in the agent's replay.
    Rule("proto/penstock/rules", WIRE, frozenset({"proto", "rules"})),
    Rule("instrumentation/penstock", WIRE, frozenset({"proto", "rules", "instrumentation"})),
    Rule(
        "instrumentation/penstock/instrumentation/vllm",
        WIRE | {"vllm", "torch", "zmq", "numpy", "cryptography"},
        frozenset({"proto", "rules", "instrumentation"}),
    ),
    # What vLLM's API server is made of; imported in its process only.
    Rule(
        "instrumentation/penstock/instrumentation/vllm/readiness.py",
        WIRE | {"vllm", "fastapi", "starlette"},
        frozenset({"proto", "rules", "instrumentation"}),
    ),
    Rule("agent/penstock", AGENT_EXTRA, frozenset({"proto", "rules", "agent"})),
    # The demo looks at the agent from outside, as a person does.
    Rule("demo", None, frozenset()),
    # Its simulated engines have the engine part.
    Rule("demo/fleet/engines.py", None, frozenset({"instrumentation"})),
)


# From top to bottom. A module imports its own room, and rooms on lower floors; rooms of one floor do not know each other.
# The longest name that a module's name begins with is its room.
AGENT_FLOORS = (
    ("__main__",),
    (
        "ctl.commands",
        "ctl.commands.inspect",
        "ctl.commands.orders",
        "ctl.commands.policies",
        "ctl.routers",
        "ctl.top",
        "relay",
    ),
    ("relay.object_status",),
    ("ctl", "relay.policies"),
    ("daemon", "evidence", "relay.discovery"),
    ("page",),
    ("page.details", "page.live"),
    ("page.screen",),
    ("page.wire",),
    ("admin",),
    ("admin.calls",),
    ("admin.lookups",),
    ("metrics",),
    ("metrics.gauges", "policy.distribution", "policy.sources"),
    ("metrics.latencies",),
    (
        "diagnosis",
        "metrics.exposition",
        "metrics.series",
        "policy.files",
        "policy.orders",
        "policy.rollouts",
        "traces.export",
        "traces.query",
    ),
    ("fleet_map", "metrics.catalogue", "views.checks"),
    (
        "bundle",
        "diagnosis.rules",
        "ingest",
        "policy.kubernetes",
        "policy.store",
        "stalls",
        "traces.assembly",
        "views",
    ),
    ("answers", "diagnosis.facts", "journal", "policy.manifest", "server"),
    ("journal.commit", "journal.query", "journal.repair"),
    ("journal.index",),
    ("journal.database",),
    ("bill", "pairs", "parsing", "prescan", "replay", "sources", "state", "traces.spans"),
    ("aio", "badness", "batch", "durations", "limits", "model"),
    ("errors",),
)
ENGINE_FLOORS = (
    ("check", "drain"),
    ("plugin", "vllm.survey"),
    ("vllm.install",),
    ("vllm.scheduler", "vllm.zmq_ec"),
    ("vllm.zmq_ec.consumer", "vllm.zmq_ec.producer"),
    ("vllm.zmq_ec.settings",),
    ("vllm.zmq_ec.memory", "vllm.zmq_ec.wire"),
    ("vllm.kv", "vllm.api_server", "vllm.server_stop", "vllm.ec.mooncake", "vllm.ec.cpu"),
    ("vllm.ec",),
    ("vllm.kv.base",),
    ("vllm.recovery", "vllm.admission", "vllm.readiness"),
    ("vllm.kv.nixl", "vllm.kv.tiering", "vllm.requests"),
    ("vllm.kv.integrity",),
    ("vllm.messages", "vllm.eplb", "vllm.connector_factory"),
    ("vllm.compat", "vllm.naming", "vllm.progress"),
    ("runtime",),
    ("policy", "telemetry"),
    ("orders", "hooks", "transport"),
    ("core",),
)
RULES_FLOORS = (
    ("decode", "quarantine", "reflexes"),
    ("circuit_breaker", "deadlines", "decisions"),
    ("field_bounds", "measured_times", "policy", "recompute_budget", "recompute_storm"),
)
FLOORS = {
    "penstock.agent": AGENT_FLOORS,
    "penstock.instrumentation": ENGINE_FLOORS,
    "penstock.rules": RULES_FLOORS,
}
# Its directory at the top of the tree, where it is not its own name.
_DIRECTORIES = {"penstock.rules": "proto"}

# Their modules are imported by name; the package itself has no face.
OPEN = frozenset(
    {
        "penstock.agent", "penstock.agent.admin", "penstock.agent.ctl", "penstock.agent.ctl.connection",
        "penstock.agent.policy", "penstock.agent.traces", "penstock.agent.views",
        "penstock.instrumentation", "penstock.instrumentation.vllm", "penstock.instrumentation.vllm.kv",
        "penstock.instrumentation.vllm.zmq_ec",
    }
)  # fmt: skip
# What is imported late, or only where it is needed, because it is expensive: grpc and protobuf in an engine, ZeroMQ, YAML,
# OpenTelemetry's SDK. It is imported by its module, never by a face.
DOORS = frozenset(
    {
        "penstock.agent.daemon.logs", "penstock.agent.evidence.served", "penstock.agent.parsing.options", "penstock.agent.parsing.yaml_documents",
        "penstock.agent.policy.files.file_source", "penstock.agent.policy.files.parse", "penstock.agent.policy.sources.followed_files",
        "penstock.agent.policy.sources.followed_objects", "penstock.agent.policy.sources.follower", "penstock.agent.policy.sources.nats.connection",
        "penstock.agent.policy.sources.nats.entries", "penstock.agent.policy.sources.nats.registry", "penstock.agent.policy.sources.nats.source", "penstock.agent.policy.sources.nats.writer",
        "penstock.agent.policy.sources.options", "penstock.agent.policy.sources.source_spec", "penstock.agent.server.feed_server", "penstock.agent.server.full_collections",
        "penstock.agent.server.grpc_server", "penstock.agent.server.http_server", "penstock.agent.server.options",
        "penstock.agent.server.page_tokens", "penstock.agent.server.status_codes", "penstock.agent.server.tls",
        "penstock.agent.traces.export.exporter", "penstock.agent.traces.export.otlp_client", "penstock.agent.traces.spans.sdk_spans",
        "penstock.instrumentation.policy.client", "penstock.instrumentation.telemetry.exporter", "penstock.instrumentation.transport.hello",
        "penstock.instrumentation.vllm.zmq_ec.consumer.scheduler", "penstock.instrumentation.vllm.zmq_ec.consumer.worker",
        "penstock.instrumentation.vllm.zmq_ec.memory.area_reader", "penstock.instrumentation.vllm.zmq_ec.memory.item_area",
        "penstock.instrumentation.vllm.zmq_ec.memory.shared_region", "penstock.instrumentation.vllm.zmq_ec.producer.worker",
        "penstock.instrumentation.vllm.zmq_ec.wire.curve", "penstock.instrumentation.vllm.zmq_ec.wire.sockets",
    }
)  # fmt: skip

RULES_DOORS = frozenset({"penstock.rules.decode"})


def rule_of(path: Path) -> Rule:
    """Return the rule for a file, given relative to the root."""
    matching = [rule for rule in RULES if path.is_relative_to(rule.directory)]
    return max(matching, key=lambda rule: len(rule.directory))


@cache
def parsed(source: str) -> ast.Module:
    """Parse a file once for all tests."""
    return ast.parse(source)


def imports(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, full module name) of every import, those inside functions and TYPE_CHECKING included."""
    for node in ast.walk(parsed(source)):
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
        ("proto/penstock/proto/x.py", "import penstock.rules"),
        ("proto/penstock/rules/x.py", "from penstock.instrumentation.core import constants"),
        ("proto/penstock/rules/x.py", "from penstock.agent.model import Source"),
        ("proto/penstock/rules/x.py", "import yaml"),
        ("demo/x.py", "from penstock.agent.model import Source"),
    ],
)
def test_a_forbidden_import_is_seen(path: str, source: str) -> None:
    """The rules can fail."""
    assert breaches(rule_of(Path(path)), source, package_of(Path(path)))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("agent/penstock/agent/x.py", "from penstock.rules import decide_kv"),
        ("instrumentation/penstock/instrumentation/x.py", "from penstock.rules import decide_kv"),
        ("proto/penstock/rules/x.py", "from penstock.proto.v1 import policy_pb2"),
        ("agent/penstock/agent/x.py", "import aiohttp, asyncio\nfrom penstock.proto.v1 import common_pb2"),
        (
            "agent/penstock/agent/metrics/x.py",
            "from .aggregator import Aggregator\nfrom ..model import Source",
        ),
        ("instrumentation/penstock/instrumentation/x.py", "import grpc\nfrom google.protobuf import message"),
        ("instrumentation/penstock/instrumentation/vllm/x.py", "import vllm, torch, zmq, numpy"),
        ("demo/x.py", "import vllm\nfrom demo.common.client import fetch"),
    ],
)
def test_an_allowed_import_is_not(path: str, source: str) -> None:
    """Nor do they fail for nothing."""
    assert breaches(rule_of(Path(path)), source, package_of(Path(path))) == []


@dataclass(frozen=True)
class Tree:
    """The modules of one product root, and the imports between them.

    Attributes:
        modules: path of each module by its full name; a package goes by its own name.
        packages: those that have an ``__init__.py``.

    """

    root: str
    modules: dict[str, Path]
    packages: frozenset[str]

    def room(self, module: str) -> str:
        """Return the room of *module* as the floors name it; empty for an open package's or the root's own ``__init__``."""
        name = module.removeprefix(self.root).lstrip(".")
        rooms = [room for floor in FLOORS[self.root] for room in floor]
        return max((room for room in rooms if f"{name}.".startswith(f"{room}.")), key=len, default="")

    @cached_property
    def _imports(self) -> dict[str, list[tuple[str, str]]]:
        return {module: list(self._of(module)) for module in self.modules}

    def imports(self, module: str) -> list[tuple[str, str]]:
        """Return (module or package of this root, imported name) of every import; the name is empty for a module."""
        return self._imports[module]

    def _of(self, module: str) -> Iterator[tuple[str, str]]:
        own = module if module in self.packages else module.rpartition(".")[0]
        for node in ast.walk(parsed(self.modules[module].read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in self.modules:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    by_module = node.module in OPEN or node.module == own or full in DOORS
                    yield (full, "") if by_module and full in self.modules else (node.module, alias.name)


@cache
def tree(root: str) -> Tree:
    """Read the modules below one product root."""
    base = ROOT / _DIRECTORIES.get(root, root.rpartition(".")[2])
    files = {
        path.relative_to(base).with_suffix("").parts: path
        for path in base.joinpath(*root.split(".")).rglob("*.py")
    }
    packages = frozenset(".".join(parts[:-1]) for parts in files if parts[-1] == "__init__")
    names = {".".join(part for part in parts if part != "__init__"): path for parts, path in files.items()}
    return Tree(root, names, packages)


@cache
def members(package: Path) -> list[str]:
    """Return the names in ``__all__`` of a package's ``__init__.py``, in their order."""
    for node in ast.parse(package.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


ROOTS = pytest.mark.parametrize("root", sorted(FLOORS))


@ROOTS
def test_every_module_has_a_floor(root: str) -> None:
    """And each room of the floors has a module."""
    found = tree(root)
    rooms = {module: found.room(module) for module in found.modules if module not in OPEN | {root}}
    assert [module for module, room in rooms.items() if not room] == []
    assert {room for floor in FLOORS[root] for room in floor} == set(rooms.values())


@ROOTS
def test_imports_go_down(root: str) -> None:
    """A module imports its own room and lower floors, for type checking too."""
    found = tree(root)
    floor = {room: number for number, rooms in enumerate(FLOORS[root]) for room in rooms}
    upwards = [
        f"{module} imports {target}"
        for module in found.modules
        for target, _ in found.imports(module)
        if (there := found.room(target)) != (here := found.room(module))
        and here
        and there
        and floor[there] <= floor[here]
    ]
    assert upwards == []


def test_no_front_imports_another() -> None:
    """Commands, page and relay show what others know; what they share is ``views``. A relay's process serves the page."""
    found = tree("penstock.agent")
    fronts = {"ctl", "page", "relay"}

    def front(module: str) -> str:
        return found.room(module).partition(".")[0]

    crossing = {
        (front(module), front(target))
        for module in found.modules
        for target, _ in found.imports(module)
        if {front(module), front(target)} <= fronts and front(module) != front(target)
    }
    assert crossing == {("relay", "page")}


@ROOTS
def test_no_imports_go_round(root: str) -> None:
    """Neither among modules nor through faces, imports for type checking included."""
    found = tree(root)
    graph = {module: {target for target, _ in found.imports(module)} - {module} for module in found.modules}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@ROOTS
def test_packages_are_imported_by_their_face(root: str) -> None:
    """Other packages import what ``__all__`` names, and the doors; each door is used."""
    found = tree(root)
    past, used = [], set()
    for module in found.modules:
        own = module if module in found.packages else module.rpartition(".")[0]
        for target, name in found.imports(module):
            package = target if target in found.packages else target.rpartition(".")[0]
            if package == own or (package in OPEN and not (name and target in found.packages)):
                continue
            if target in DOORS:
                used.add(target)
            elif target != package or name not in members(found.modules[package]):
                past.append(f"{module} imports {target} {name}".rstrip())
    assert past == []
    assert used == {door for door in DOORS if door.startswith(f"{root}.")}


def test_the_rules_are_imported_by_their_face() -> None:
    """By both sides; the doors are for what needs protobuf, and each is used."""
    face = set(members(tree("penstock.rules").modules["penstock.rules"]))
    past, used = [], set()
    for path in sources():
        if path.parts[:2] == ("proto", "penstock"):
            continue
        for node in ast.walk(parsed((ROOT / path).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock.rules"):
                used.add(node.module)
                if node.module not in RULES_DOORS and not {alias.name for alias in node.names} <= face:
                    past.append(f"{path} imports {node.module}")
    assert past == []
    assert used == {"penstock.rules", *RULES_DOORS}


@ROOTS
def test_a_package_is_a_sentence_and_a_face(root: str) -> None:
    """An ``__init__.py`` has a docstring of one sentence, imports of its own modules and ``__all__`` (ruff sorts it)."""
    found = tree(root)
    for package in found.packages:
        body = ast.parse(found.modules[package].read_text()).body
        docstring = ast.get_docstring(ast.Module(body, []))
        assert docstring, package
        assert "\n" not in docstring, package
        if package not in LAZY:
            kinds = {type(node) for node in body[1:]}
            assert kinds <= {ast.ImportFrom, ast.Assign}, package


# Its one name is imported when it is asked for: vLLM and torch come with it.
LAZY = frozenset({"penstock.instrumentation.vllm.zmq_ec"})
