"""Verifies KV transfers: the sender's digest travels in the transfer parameters, the receiver compares what has arrived."""

from __future__ import annotations

from penstock.instrumentation.vllm.kv.integrity.block_digests import (
    BlockDigests,
    KvLayout,
    LoadCheck,
    check_load,
    layout_of,
)
from penstock.instrumentation.vllm.kv.integrity.transfer_digest import KEY, decode_digest, encode_digest
from penstock.instrumentation.vllm.kv.integrity.verifier import KvVerifier

__all__ = [
    "KEY",
    "BlockDigests",
    "KvLayout",
    "KvVerifier",
    "LoadCheck",
    "check_load",
    "decode_digest",
    "encode_digest",
    "layout_of",
]
