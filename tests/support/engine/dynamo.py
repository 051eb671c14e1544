"""NVIDIA Dynamo on loopback: a front end, a prefill and a decode worker, no other server."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from demo.common.client import Answer, fetch, post_json
from demo.common.model import tiny_model
from demo.common.processes import Child, free_port
from demo.servers import LOOPBACK, ROOT, ServerSpec, _environment
from tests.support.engine.pairs import penstock_env

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Dynamo:
    """The running parts; *url* is the front end's."""

    url: str
    frontend: Child
    prefill: Child
    decode: Child

    def ask(self, prompt: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a completion to the front end, which sends it to both workers."""
        return _complete(self.url, prompt, headers)


@contextmanager
def running_dynamo(endpoint: str, *, logs: Path, decode_dtype: str = "float32") -> Iterator[Dynamo]:
    """Start all three with ``PENSTOCK_ENDPOINT``, wait until the model is served, and stop them at the end.

    The decode worker computes anew what it cannot load. With a *decode_dtype* of its own it can load nothing: NIXL's hash differs.
    """
    model = tiny_model(ROOT / ".cache" / "models")
    template = logs / "chat.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    port = free_port()
    common = {
        "DYN_FILE_KV": str(logs / "discovery"),
        "DYN_DISCOVERY_BACKEND": "file",
        # Without it Dynamo has no trace context, and passes no header on.
        "DYN_LOGGING_JSONL": "1",
        "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0",
        "DYN_TCP_RPC_HOST": LOOPBACK,
        "PENSTOCK_ALLOW_FAULTS": "1",
    }
    with ExitStack() as parts:

        def start(name: str, *command: str, env: Mapping[str, str]) -> Child:
            spec = ServerSpec(name, env={**common, **env})
            child = Child(
                name,
                [sys.executable, "-m", *command],
                env=_environment(spec, free_port()),
                cwd=logs,
                log=logs / f"{name}.log",
            )
            parts.callback(child.stop)
            return child

        front = start(
            "frontend", "dynamo.frontend", "--http-host", LOOPBACK, "--http-port", str(port), env={}
        )
        workers = [
            start(
                role,
                "tests.support.engine.dynamo_worker",
                *("--model", str(model), "--served-model-name", "tiny", "--disaggregation-mode", role),
                # Dynamo serves no model without one, not even completions.
                *("--custom-jinja-template", str(template)),
                *("--dtype", dtype, "--max-model-len", "2048", "--enforce-eager"),
                *("--kv-transfer-config", json.dumps(_transfer(kv_role))),
                env=penstock_env({"PENSTOCK_ENDPOINT": endpoint}, role),
            )
            for role, kv_role, dtype in (
                ("prefill", "kv_producer", "float32"),
                ("decode", "kv_consumer", decode_dtype),
            )
        ]
        dynamo = Dynamo(f"http://{LOOPBACK}:{port}", front, *workers)
        for worker in workers:
            worker.wait_until(lambda: _serves(dynamo.url), what="served")
        yield dynamo


def _transfer(kv_role: str) -> dict[str, str]:
    return {
        "kv_connector": "NixlConnector",
        "kv_role": kv_role,
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
    }


def _complete(url: str, prompt: str, headers: Mapping[str, str] | None = None) -> Answer:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    return post_json(f"{url}/v1/completions", body, headers=headers)


def _serves(url: str) -> bool:
    try:
        if "tiny" not in fetch(f"{url}/v1/models").text:
            return False
        return _complete(url, "is it there?").status == HTTPStatus.OK
    except OSError:
        return False
