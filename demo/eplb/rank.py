"""One rank of an expert-parallel group that moves real expert weights: ``python -m demo.eplb.rank``.

Builds vLLM's own ``EplbState`` over a gloo process group, with random expert weights, feeds it an uneven load and steps it as a
model runner does. Writes the content of each row before and after, so that the demo can verify the moves.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed.eplb import async_worker
from vllm.distributed.eplb.eplb_state import EplbState
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from vllm.plugins import load_general_plugins

from demo.eplb import cpu_device, shared_gpu
from demo.eplb.weight_maps import expert_values

WIDTHS = (48, 24)
"""Values of one expert in each of a layer's weight tensors."""


class Experts:
    """A mixture of experts as vLLM's balancer sees it (``MixtureOfExperts``), without layers that compute."""

    def __init__(
        self, layers: int, logical: int, redundant: int, ranks: int, rank: int, device: torch.device
    ) -> None:
        self.num_moe_layers = layers
        self.num_logical_experts = self.num_routed_experts = logical
        self.num_redundant_experts = redundant
        self.num_physical_experts = logical + redundant
        self.num_local_physical_experts = rows = self.num_physical_experts // ranks
        self.num_expert_groups = 1
        self.moe_layers: list[Any] = []
        held = [(rank * rows + row) % logical for row in range(rows)]
        self.expert_weights = [
            [
                torch.from_numpy(np.stack([expert_values(layer, expert, width) for expert in held])).to(
                    device
                )
                for width in WIDTHS
            ]
            for layer in range(layers)
        ]

    def set_eplb_state(self, *_tensors: Any) -> None:
        """Ignore the balancer's tensors: there is no router."""


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--port", type=int, required=True, help="of the group's store, on the loopback interface"
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for what the rows hold")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: all ranks on one GPU")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--redundant", type=int, default=4)
    parser.add_argument("--interval", type=int, default=8, help="steps from one rebalance to the next")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the load")
    parser.add_argument("--asynchronous", action="store_true")
    parser.add_argument("--profile", action="store_true", help="first a profile run, which is no rebalance")
    parser.add_argument("--linger", action="store_true", help="wait for a file 'end' before leaving")
    parser.add_argument(
        "--stall", type=float, default=0.0, help="seconds by which it is late for each transfer"
    )
    parser.add_argument("--die", action="store_true", help="kill itself in the middle of the first transfer")
    return parser.parse_args()


def _state(options: argparse.Namespace, experts: Experts) -> Any:
    parallel = ParallelConfig(tensor_parallel_size=options.ranks, enable_expert_parallel=True)
    parallel.rank = options.rank
    config = VllmConfig(parallel_config=parallel)
    # Set afterwards: the configuration's validation refuses EPLB on this platform.
    parallel = config.parallel_config
    parallel.enable_eplb = True
    balancing = parallel.eplb_config
    balancing.step_interval = options.interval
    balancing.window_size = options.interval
    balancing.num_redundant_experts = options.redundant
    balancing.use_async = options.asynchronous
    balancing.communicator = "torch_gloo"
    with set_current_vllm_config(config):
        init_distributed_environment(
            options.ranks,
            options.rank,
            f"tcp://127.0.0.1:{options.port}",
            options.rank if options.device == "cpu" else 0,
            "gloo",
        )
        initialize_model_parallel(options.ranks, backend="gloo")
    state = EplbState(parallel, torch.device(options.device))
    model = SimpleNamespace(model="demo-experts", compute_hash=lambda: "demo-experts")
    state.add_model(experts, model, "demo-experts")
    return state


def _start_receiving(state: Any, device: str) -> None:
    """Start vLLM's receiving thread, on a CPU with a stream instead of a device."""
    if device != "cpu":
        state.start_async_loop()
        return

    def receive() -> None:
        async_worker.transfer_run_periodically(state=state, stream=cpu_device.stream())

    threading.Thread(target=receive, daemon=True).start()


def _be_late(communicator: Any, seconds: float) -> None:
    """Let each transfer of a layer begin later, as a rank with a slow host does."""
    execute = communicator.execute

    def late() -> Any:
        time.sleep(seconds)
        return execute()

    communicator.execute = late


def _write(path: Path, state: Any, experts: Experts) -> None:
    (model,) = state.model_states.values()
    arrays = {
        f"layer{layer}_weight{index}": weight.cpu().numpy()
        for layer, weights in enumerate(experts.expert_weights)
        for index, weight in enumerate(weights)
    }
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, experts=model.physical_to_logical_map.cpu().numpy(), **arrays)
    temporary.rename(path)


def main() -> None:
    """Run the steps."""
    options = _parse()
    # As a CPU worker of vLLM sets it: the ranks of one run name their shared memory by it.
    os.environ["VLLM_DIST_IDENT"] = str(options.port)
    (cpu_device if options.device == "cpu" else shared_gpu).install()
    load_general_plugins()
    device = torch.device(options.device)
    experts = Experts(options.layers, options.experts, options.redundant, options.ranks, options.rank, device)
    state = _state(options, experts)
    (model,) = state.model_states.values()
    _write(options.out / f"before{options.rank}.npz", state, experts)
    if options.asynchronous:
        _start_receiving(state, options.device)
    if options.profile:
        state.step(is_profile=True)
    if options.stall:
        _be_late(model.communicator, options.stall)
    if options.die:
        model.communicator.execute = lambda: os.kill(os.getpid(), signal.SIGKILL)
    load = torch.from_numpy(
        np.random.default_rng(options.seed).zipf(1.6, (options.layers, experts.num_physical_experts))
    ).clamp(max=10_000)
    paused = []
    for _ in range(options.steps):
        model.expert_load_pass.copy_(load)
        began = time.monotonic()
        state.step()
        paused.append(time.monotonic() - began)
        time.sleep(0.005)  # the forward pass between two steps
    _write(options.out / f"after{options.rank}.npz", state, experts)
    (options.out / f"steps{options.rank}.json").write_text(json.dumps(paused))
    if options.linger:
        _wait_for(options.out / "end")


def _wait_for(path: Path, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
    # The last events go with the next second's batch; at exit they have one second, which is short on a busy machine.
    time.sleep(3.0)
