"""What scheduler and workers tell each other about the verification of KV transfers.

A *digest* is eight bytes for each block and KV head, over all layers of a KV cache group (``kv/integrity/block_digests.py``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupBlocks:
    """Blocks of one KV cache group in the order of the tokens; only the first *tail* tokens of the last one are valid."""

    blocks: tuple[int, ...]
    tail: int


@dataclass(frozen=True, slots=True)
class GroupDigest:
    """The sender's digests of one KV cache group.

    Attributes:
        blocks: the blocks that the sender offers.
        tail: valid tokens of the last one.
        covered: the last so many of them have a digest.
        digests: little-endian, by block, then by KV head.

    """

    blocks: int
    tail: int
    covered: int
    digests: bytes


@dataclass(frozen=True, slots=True)
class TransferDigest:
    """What the sender of a request's KV has computed of it, for all of the model's *heads*."""

    block_size: int
    heads: int
    groups: tuple[GroupDigest, ...]


@dataclass(frozen=True, slots=True)
class DigestOrder:
    """Compute the digests of a request whose prefill ends in this step; *number*: unlike that of any other order."""

    request_id: str
    groups: tuple[GroupBlocks, ...]
    number: int = 0


@dataclass(frozen=True, slots=True)
class RankDigest:
    """The digests that one rank has computed of its own *heads*, numbers among the *total* ones; *problem*: why there are none.

    *number* is that of the order.
    """

    request_id: str
    block_size: int = 0
    total: int = 0
    heads: tuple[int, ...] = ()
    groups: tuple[bytes, ...] = ()
    problem: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class VerifyOrder:
    """Compare what a load brings with the sender's digest; *enforce*: a mismatch makes the load fail."""

    request_id: str
    digest: TransferDigest
    enforce: bool


@dataclass(frozen=True, slots=True)
class CheckedLoad:
    """What one rank has found: how many blocks it received, compared and found different; *reason*: why not all were compared."""

    request_id: str
    transferred: int
    compared: int
    mismatched: int
    reason: str = ""
