"""The entry point: cheap, silent where it is not wanted, harmless where it fails."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points

import pytest
from penstock.instrumentation.plugin import register


def run(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program with these variables of ours and no others."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


HEAVY = "('grpc', 'google', 'vllm', 'torch', 'zmq', 'numpy', 'asyncio')"

# A vLLM that has no plugin interface to speak of stands in for one that is not installed.
NO_VLLM = "sys.modules['penstock.instrumentation.vllm.install'] = None"


@pytest.mark.parametrize(
    "module", ["plugin", "runtime", "core", "hooks", "transport", "telemetry", "policy", "orders"]
)
def test_imports_are_cheap(module: str) -> None:
    """Importing what hooks import brings neither grpc, protobuf nor anything of vLLM's."""
    run(f"""
    import sys
    import penstock.instrumentation.{module}
    found = [name for name in sys.modules if name.split('.')[0] in {HEAVY} or name.startswith('penstock.proto.v1')]
    assert not found, found
    """)


def test_nothing_without_an_endpoint() -> None:
    """Without PENSTOCK_ENDPOINT the plugin leaves no trace: no hook, no thread, no module."""
    done = run(f"""
    import sys, threading
    from penstock.instrumentation import plugin
    plugin.register()
    from penstock.instrumentation.runtime import runtime
    assert runtime.settings is None and not runtime.active
    assert threading.active_count() == 1
    assert not [name for name in sys.modules if name.split('.')[0] in {HEAVY} or '.vllm' in name]
    runtime.emit_event("load_outcome", {{}}, component=1)
    runtime.start()
    runtime.start_policy(("kv_load_failure",))
    assert threading.active_count() == 1
    """)
    assert done.stderr == ""


def test_wrong_value_stays_off() -> None:
    """A wrong value is one line on the log and nothing more."""
    done = run(
        """
        from penstock.instrumentation import plugin
        plugin.register()
        from penstock.instrumentation.runtime import runtime
        assert runtime.settings is None and not runtime.active
        """,
        PENSTOCK_ENDPOINT="nowhere",
    )
    assert done.stderr.count("\n") == 1
    assert "PENSTOCK_ENDPOINT='nowhere'" in done.stderr


def test_hooks_that_cannot_be_imported() -> None:
    """Without vLLM the plugin is registered, counts the error, and raises nothing."""
    run(
        f"""
        import sys
        {NO_VLLM}
        from penstock.instrumentation import plugin
        plugin.register()
        plugin.register()
        from penstock.instrumentation.core.guard import guard
        assert guard.counts.drain() == {{("plugin.register", "ModuleNotFoundError"): 1}}
        """,
        PENSTOCK_ENDPOINT="unix:///nowhere/ingest.sock",
    )


def test_no_thread_before_the_first_entry() -> None:
    """register() starts nothing; the first entry starts the exporter, without an agent too, and the end is quick."""
    run(
        f"""
        import sys, threading
        {NO_VLLM}
        from penstock.instrumentation import plugin
        plugin.register()
        assert threading.active_count() == 1
        from penstock.instrumentation.runtime import runtime
        assert runtime.active
        runtime.identify(process="engine-core", key="0")
        runtime.emit_event("load_outcome", {{}}, component=1)
        assert "penstock-exporter" in [thread.name for thread in threading.enumerate()]
        """,
        PENSTOCK_ENDPOINT="unix:///nowhere/ingest.sock",
    )


def test_entry_point() -> None:
    """VLLM finds the plugin under its group."""
    (found,) = entry_points(group="vllm.general_plugins", name="penstock")
    assert found.load() is register
