"""The relay's command, run as ``python -m``, so that it can be a fork."""

from __future__ import annotations

if __name__ == "__main__":
    from penstock.agent.__main__ import relay

    relay()
