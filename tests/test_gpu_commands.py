"""The servers of `make test-gpu` as far as a CPU can tell: vLLM's own parser takes their command lines, and knows the rest."""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from pathlib import Path

import pytest

from demo.ec.servers import encoder_spec, language_spec
from demo.servers import ServerSpec, _arguments, _environment
from tests.support.gpu.servers import (
    MODULE,
    V2_LOGGED,
    experts_spec,
    nixl_specs,
    offload_spec,
    on_gpu,
    plain_spec,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm import envs
    from vllm.distributed.ec_transfer.ec_connector.factory import ECConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils import _NIXL_SUPPORTED_DEVICE
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

ENDPOINT = "unix:///run/penstock/ingest.sock"
GPU_MEMORY, HOST = nixl_specs(ENDPOINT, "cuda"), nixl_specs(ENDPOINT, "cpu")
SPECS = {
    "prefill, GPU memory": GPU_MEMORY[0],
    "decode, GPU memory": GPU_MEMORY[1],
    "prefill, host buffer": HOST[0],
    "decode, host buffer": HOST[1],
    "encoder over ZeroMQ": on_gpu(encoder_spec("encoder", port=5601)),
    "language over ZeroMQ": on_gpu(language_spec("language", producers=["127.0.0.1:5601"])),
    "offload": offload_spec("offload", ENDPOINT, "ec_both"),
    "offload over NIXL": offload_spec("offload", ENDPOINT, "ec_producer", port=5602),
    "experts": experts_spec(ENDPOINT, asynchronous=False),
    "experts, asynchronous": experts_spec(ENDPOINT, asynchronous=True),
    "plain": plain_spec("plain", ENDPOINT),
}


def parsed(spec: ServerSpec) -> AsyncEngineArgs:
    """Return what vLLM reads from a server's command line; it ends the process at a flag that it does not know."""
    parser = make_arg_parser(FlexibleArgumentParser())
    return AsyncEngineArgs.from_cli_args(parser.parse_args(_arguments(spec, Path("/model"), 8000)))


@pytest.fixture(params=list(SPECS.values()), ids=list(SPECS))
def spec(request: pytest.FixtureRequest) -> ServerSpec:
    """Give each server."""
    found: ServerSpec = request.param
    return found


def test_vllm_takes_the_command_line(spec: ServerSpec) -> None:
    """The GPU's arguments win over those of a CPU."""
    arguments = parsed(spec)
    assert arguments.dtype == "float16"
    assert arguments.kv_cache_memory_bytes == 256 << 20
    assert arguments.gpu_memory_utilization == pytest.approx(0.1)
    assert arguments.enforce_eager is (spec.name != "plain")


def test_vllm_knows_the_connectors(spec: ServerSpec) -> None:
    """By their names; Penstock's own by its module."""
    arguments = parsed(spec)
    kv, ec = arguments.kv_transfer_config, arguments.ec_transfer_config
    if kv is not None:
        assert kv.kv_connector in KVConnectorFactory._registry
        assert kv.kv_buffer_device in _NIXL_SUPPORTED_DEVICE["cuda"]
        assert kv.kv_load_failure_policy == "fail"
    if ec is not None and ec.ec_connector_module_path is None:
        assert ec.ec_connector in ECConnectorFactory._registry


def test_experts_are_balanced() -> None:
    """EPLB is on, over two ranks; the physical experts divide evenly over them."""
    arguments = parsed(SPECS["experts, asynchronous"])
    assert (arguments.enable_eplb, arguments.enable_expert_parallel) == (True, True)
    assert arguments.tensor_parallel_size == 2
    assert arguments.eplb_config.use_async
    assert (8 + arguments.eplb_config.num_redundant_experts) % 2 == 0


def test_the_environment_is_a_gpus(spec: ServerSpec) -> None:
    """V2 model runner; nothing that is for a CPU; vLLM knows each of its variables."""
    environment = _environment(spec, 5600)
    assert environment["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert not {"UCX_TLS", "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE"} & environment.keys()
    known = set(envs.environment_variables)
    assert {name for name in environment if name.startswith("VLLM_")} <= known


def test_vllm_has_the_module_and_the_log_line() -> None:
    """What starts the servers, and what a worker with the V2 model runner logs."""
    assert importlib.util.find_spec(MODULE) is not None
    worker = importlib.util.find_spec("vllm.v1.worker.gpu_worker")
    assert worker is not None
    assert worker.origin is not None
    assert V2_LOGGED in Path(worker.origin).read_text()
    # What `python -m` runs.
    assert '__name__ == "__main__"' in inspect.getsource(importlib.import_module(MODULE))
