"""vLLM's API server whose Mamba-2 layers keep no state of a block's end inside a prefill.

vLLM's kernels for a CPU return the last state only (``_mamba_chunk_scan_combined_fwd_cpu``), and vLLM 0.32 asks them for others:
``IndexError: index 6 is out of bounds for dimension 0 with size 1`` in the first long prefill. Without, the scheduler ends a step
where a block ends, as with all other layers that have a state. It runs at import, so that a spawned child has it too.
"""

from __future__ import annotations

from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

from demo.common import vllm_server

if "get_kv_cache_spec" in vars(MambaMixer2):
    del MambaMixer2.get_kv_cache_spec

if __name__ == "__main__":
    vllm_server.main()
