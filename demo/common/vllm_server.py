"""vLLM's API server with polling intervals for two cores.

``python -m demo.common.vllm_server`` takes the API server's arguments. Some constants of vLLM and NIXL assume a core for each
process; on two cores they turn milliseconds into seconds. They are set at import, so that a spawned child, which imports its
parent's main module, has them too.
"""

from __future__ import annotations

import functools
from typing import Any

from vllm.distributed.device_communicators import shm_broadcast

from demo.common.nixl_poll_pause import pause_progress_threads

_RECHECK_MILLISECONDS = 5
_SPIN_SECONDS = 0.002


def _shorten_spinning() -> None:
    """Make EngineCore and workers yield the core while they wait for each other's messages.

    vLLM's reader spins for a second after each message, then sleeps until a notification. The PUB socket of
    notifications drops one while another is in flight, often so on a busy machine; the fallback is a poll
    every five seconds.
    """
    shm_broadcast.SHM_READER_RECHECK_INTERVAL_MS = _RECHECK_MILLISECONDS
    shm_broadcast.SpinCondition = functools.partial(shm_broadcast.SpinCondition, busy_loop_s=_SPIN_SECONDS)


def main() -> Any:
    """Run the API server."""
    # The `vllm` command asks for the metadata of a distribution named vllm, which the CPU build is not.
    try:
        from vllm.entrypoints.launchers.api_server import entry  # noqa: PLC0415
    except ImportError:
        return _main_until_28()
    return entry.main()


def _main_until_28() -> Any:
    """Do what the API server's module does when it is run."""
    import uvloop  # noqa: PLC0415
    from vllm.entrypoints.openai import api_server  # noqa: PLC0415

    api_server.cli_env_setup()
    parser = api_server.make_arg_parser(api_server.FlexibleArgumentParser())
    args = parser.parse_args()
    api_server.validate_parsed_serve_args(args)
    return uvloop.run(api_server.run_server(args))


pause_progress_threads()
_shorten_spinning()

if __name__ == "__main__":
    main()
