"""Which hooks fit which vLLM: the table of docs/compatibility.md, and the report where one does not fit."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation import check as command
from penstock.instrumentation.hooks.registry import NOT_USED, registry
from penstock.instrumentation.hooks.report import HookStatus
from penstock.instrumentation.vllm import install as installer
from penstock.instrumentation.vllm import survey as surveys
from penstock.instrumentation.vllm.scheduler.hook import instrument
from penstock.proto.v1.common_pb2 import COMPONENT_FRONTEND, COMPONENT_SCHEDULER, COMPONENT_WORKER
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.engine import schedulers
from tests.support.engine.versions import from_version
from tests.support.kv import nixl_pair

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    import vllm
    from vllm.config.scheduler import SchedulerConfig
    from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.async_llm import AsyncLLM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.engine.recorder import Recorder

ALL = {
    "client_error": COMPONENT_FRONTEND,
    "ec_connector": COMPONENT_WORKER,
    "ec_cpu_scheduler": COMPONENT_SCHEDULER,
    "ec_cpu_worker": COMPONENT_WORKER,
    "ec_mooncake_scheduler": COMPONENT_SCHEDULER,
    "ec_mooncake_worker": COMPONENT_WORKER,
    "engine_failure": COMPONENT_SCHEDULER,
    "eplb": COMPONENT_WORKER,
    "kv_connector": COMPONENT_WORKER,
    "kv_p2p_tier": COMPONENT_SCHEDULER,
    "kv_worker": COMPONENT_WORKER,
    "mooncake": COMPONENT_WORKER,
    "nixl": COMPONENT_WORKER,
    "readiness": COMPONENT_FRONTEND,
    "scheduler": COMPONENT_SCHEDULER,
    "scheduler_class": COMPONENT_SCHEDULER,
    "server_stop": COMPONENT_FRONTEND,
    "trace_context": COMPONENT_FRONTEND,
    "zmq_ec_connector": COMPONENT_WORKER,
}


@dataclass(frozen=True)
class Known:
    """What is known of a version of vLLM.

    Attributes:
        left_out: hooks that do not fit, and why.
        unused: hooks of connectors that it does not have, or of what it does itself.
        missing: by hook the parts that it does without.

    """

    left_out: Mapping[str, str] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_NO_MOONCAKE_EC = frozenset({"ec_mooncake_scheduler", "ec_mooncake_worker", "ec_cpu_scheduler"})
_UNTIL_31 = {"client_error": ("error_type",), "kv_connector": ("load_source",)}
_UNTIL_29 = _UNTIL_31 | {"ec_connector": ("given_up_items",)}
_NO_REASONS = {
    "mooncake": "MooncakeConnectorWorker._handle_failed_recv is missing",
    "zmq_ec_connector": "ECConnectorBase.take_unavailable_requests is missing",
}
_NO_CPU_EC = _NO_MOONCAKE_EC | {"ec_cpu_worker"}
_UNTIL_28 = Known(_NO_REASONS, _NO_CPU_EC, _UNTIL_29)
# Of the minor versions that Penstock works with. A new version is a new line here; `make check-versions` writes its column in
# docs/compatibility.md.
VERSIONS = {
    # Its tier asks for no more than one load of a request.
    "0.26": Known(_NO_REASONS, _NO_CPU_EC | {"kv_p2p_tier"}, _UNTIL_29),
    "0.27": _UNTIL_28,
    "0.28": _UNTIL_28,
    "0.29": Known(_NO_REASONS, _NO_MOONCAKE_EC, _UNTIL_29),
    "0.30": Known(missing=_UNTIL_31),
    "0.31": Known(missing=_UNTIL_31),
    "0.32": Known(),
    "0.33": Known(),
}

OWN = ".".join(vllm.__version__.split(".")[:2])


def expected() -> list[tuple[str, int, bool, str]]:
    """Return the rows of the report with the vLLM that is installed."""
    assert OWN in VERSIONS, f"vLLM {OWN} is new here: say which hooks it leaves out, and run everything on it"
    known = VERSIONS[OWN]
    return [
        (name, component, name not in known.left_out, known.left_out.get(name, ""))
        for name, component in ALL.items()
        if name not in known.unused
    ]


DOCUMENT = Path(__file__).parents[3] / "docs" / "compatibility.md"


@pytest.fixture
def clean() -> Iterator[None]:
    """Begin without a state of any hook, and end so."""
    registry.uninstall_all()
    registry._states.clear()
    registry._unused = frozenset()
    yield
    registry.uninstall_all()
    registry._states.clear()


def test_the_survey() -> None:
    """Without an engine each hook is held against every class that it is for, and says what an engine would report."""
    answers = surveys.survey()
    used = [each for each in answers if each.status is not HookStatus.NOT_USED]
    found = {(each.hook, each.component, each.status is HookStatus.FITS, each.reason) for each in used}
    assert sorted(found) == expected()
    missing = {each.hook: tuple(part.name for part in each.missing) for each in used if each.missing}
    assert missing == VERSIONS[OWN].missing
    assert [each.host for each in answers if each.hook == "scheduler"] == [
        "Scheduler",
        "AsyncScheduler",
        "DiffusionScheduler",
    ]
    assert [each.host for each in answers if each.hook == "nixl"] == [
        "NixlPullConnectorWorker",
        "NixlPushConnectorWorker",
    ]


def test_the_document_says_the_same() -> None:
    """Its table has every hook, and a column for each version, which ``make check-versions`` writes."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in DOCUMENT.read_text().splitlines()
    ]
    (start,) = [number for number, cells in enumerate(rows) if cells[0] == "hook"]
    versions = rows[start][2:]
    table = {
        cells[0].strip("`"): dict(zip(versions, cells[2:], strict=True))
        for cells in rows[start + 2 :][: len(ALL)]
    }
    assert set(table) == set(ALL)
    for version, known in VERSIONS.items():
        assert {name: cells[version] for name, cells in table.items()} == {
            name: "no"
            if name in known.left_out
            else "not used"
            if name in known.unused
            else "less"
            if name in known.missing
            else "yes"
            for name in ALL
        }


@pytest.mark.usefixtures("recorder", "clean")
async def test_the_report_of_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes out with a snapshot, and so what ``agentctl describe engine`` and ``doctor`` show, once all has been built."""
    nixl_pair.prepare(monkeypatch, tmp_path)
    installer.install()
    assert registry.report()
    SchedulerConfig.default_factory(async_scheduling=True).get_scheduler_cls()
    engine = nixl_pair.Engine(tmp_path, "kv_consumer", monkeypatch)
    front_end: Any = SimpleNamespace(
        vllm_config=SimpleNamespace(
            model_config=SimpleNamespace(served_model_name="tiny", model="tiny"), ec_transfer_config=None
        ),
        observability_config=SimpleNamespace(otlp_traces_endpoint=None),
    )
    with contextlib.suppress(AttributeError):  # no engine is behind it
        await AsyncLLM.add_request(front_end, "r", "prompt", None)
    snapshot = Snapshot()
    registry.fill(snapshot)
    engine.close()
    # Its only connector is NIXL's, and nobody has built an API server.
    others = {
        "readiness",
        "kv_p2p_tier",
        "kv_worker",
        "mooncake",
        "ec_mooncake_scheduler",
        "ec_mooncake_worker",
        "ec_cpu_scheduler",
        "ec_cpu_worker",
    }
    wanted = [each for each in expected() if each[0] not in others]
    # It has no encoder connector.
    unused = {"ec_connector", "zmq_ec_connector"}
    assert [(each.name, each.component, each.installed, each.reason) for each in snapshot.hooks] == [
        (name, component, fits, f"{NOT_USED}: {reason}" if name in unused and not fits else reason)
        for name, component, fits, reason in wanted
    ]


@pytest.mark.usefixtures("recorder", "clean")
def test_a_later_vllm_calls_differently(tmp_path: Path) -> None:
    """A scheduler that calls its own method with more than Penstock takes is used as it is, and works."""

    class Later(Scheduler):
        def _free_blocks(self, request: Any, *, at_once: bool = True) -> None:
            assert at_once
            super()._free_blocks(request)

        def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            return super()._free_request(request, *args, **kwargs)

    assert instrument(Later) is Later
    (state,) = [each for each in registry.report() if each.name == "scheduler"]
    assert (state.installed, state.reason.rpartition(".")[2]) == (
        False,
        "_free_blocks is called in a way that Penstock does not know: got an unexpected keyword argument 'at_once'",
    )
    scheduler = schedulers.build(instrument(Later), schedulers.vllm_config(tmp_path))
    scheduler.add_request(schedulers.request("r", max_tokens=1))
    outputs = schedulers.step(scheduler)
    assert [each.request_id for each in outputs[0].outputs if each.finish_reason is not None] == ["r"]
    scheduler.shutdown()


@pytest.mark.usefixtures("recorder", "clean")
def test_an_earlier_vllm_lacks_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook is left out with what it misses, and the survey says the same."""
    monkeypatch.delattr(ECConnectorBase, "ensure_cache_available")
    reason = "ECConnectorBase.ensure_cache_available is missing"
    installer.install()
    states = {each.name: each.reason for each in registry.report()}
    assert states.pop("ec_connector") == reason
    assert reason not in states.values()
    (answer,) = [each for each in surveys.survey() if each.hook == "ec_connector"]
    assert (answer.status, answer.reason) == (HookStatus.LEFT_OUT, reason)


@from_version(0, 30, "lacks more")
@pytest.mark.usefixtures("recorder", "clean")
def test_an_earlier_vllm_lacks_a_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook works without it, the one that cannot is left out, and the others are installed."""
    monkeypatch.delattr(ECConnectorBase, "take_unavailable_requests")
    installer.install()
    states = {each.name: each.reason for each in registry.report()}
    assert states.pop("zmq_ec_connector") == "ECConnectorBase.take_unavailable_requests is missing"
    assert set(states.values()) == {""}
    (answer,) = [each for each in surveys.survey() if each.hook == "ec_connector"]
    assert (answer.status, [part.name for part in answer.missing]) == (HookStatus.FITS, ["given_up_items"])


def test_what_a_survey_does_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's class being gone leaves its hook out, one of the others is not used; without NIXL its hook is not used; one that is disabled is off."""
    gone = ("vllm.v1.core.sched.gone.Scheduler", "vllm.v1.core.sched.scheduler.LaterScheduler")
    monkeypatch.setattr(surveys, "SCHEDULERS", gone)
    nixl = importlib.import_module("vllm.distributed.nixl_utils")
    monkeypatch.setattr(nixl, "NixlWrapper", None)
    found = {(each.hook, each.host): (each.status, each.reason) for each in surveys.survey({"eplb"})}
    assert found["scheduler", "Scheduler"] == (
        HookStatus.LEFT_OUT,
        "ModuleNotFoundError: No module named 'vllm.v1.core.sched.gone'",
    )
    assert found["scheduler", "LaterScheduler"] == (HookStatus.NOT_USED, "this vLLM has no such class")
    assert found["nixl", "NixlPullConnectorWorker"] == (HookStatus.NOT_USED, "vLLM finds no NIXL")
    assert found["eplb", ""] == (HookStatus.OFF, "disabled by PENSTOCK_HOOKS_DISABLED")


def check(*arguments: str, before: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, or after a line of Python."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PENSTOCK_", "VLLM_PLUGINS"))
    }
    module = "penstock.instrumentation.check"
    program = ("-c", f"{before}; import runpy; runpy.run_module({module!r}, run_name='__main__')")
    return subprocess.run(
        [sys.executable, *(program if before else ("-m", module)), *arguments],
        env={**inherited, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Begin without settings of Penstock and of vLLM's plugins."""
    for name in list(os.environ):
        if name.startswith(("PENSTOCK_", "VLLM_PLUGINS")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "CRITICAL")
    monkeypatch.setenv("PENSTOCK_ENDPOINT", "unix:///run/penstock/ingest.sock")
    return monkeypatch


def test_the_command(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the versions and every hook, and ends with 0 where nothing is amiss."""
    del environment
    code = command.main([])
    assert_well(code, capsys.readouterr().out)


@pytest.mark.long
def test_the_command_in_a_process_of_its_own() -> None:
    """It imports vLLM itself, and answers the same."""
    done = check(PENSTOCK_ENDPOINT="unix:///run/penstock/ingest.sock")
    assert_well(done.returncode, done.stdout)


def assert_well(code: int, output: str) -> None:
    """Check the exit code and the lines of the report on the vLLM that is installed."""
    lines = output.splitlines()
    assert lines[0].startswith(f"vLLM {vllm.__version__}, NIXL ")
    said = ["vLLM will load the plugin", "entries go to unix:///run/penstock/ingest.sock"]
    end = lines.index(said[0])
    assert {line.split()[0] for line in lines[2:end]} == set(ALL)
    assert lines[end : end + 2] == said
    assert code == (1 if VERSIONS[OWN].left_out else 0)


def test_the_command_where_the_plugin_is_left_out(
    environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list of plugins that vLLM is allowed to load is looked at as well."""
    environment.setenv("VLLM_PLUGINS", "other")
    assert command.main([]) == 1
    assert "VLLM_PLUGINS='other' leaves it out; add penstock" in capsys.readouterr().out


def test_the_command_without_vllm(recorder: Recorder) -> None:
    """It says so, and how to run it."""
    del recorder
    done = check(before="import sys; sys.modules['vllm'] = None")
    assert (done.returncode, done.stdout) == (2, "")
    assert "run this with the Python that runs vLLM" in done.stderr
