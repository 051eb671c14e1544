"""The paths of CURVE's key files, as they are configured. Pure; ``curve.py`` reads them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CurveFiles:
    """Paths from the configuration, empty where there is none.

    Attributes:
        key_file: this engine's ``.key_secret``.
        allowed_clients: of a producer, a ``.key`` file or a directory of them.
        server_key_file: of a consumer, the producers' ``.key``.

    """

    key_file: str = ""
    allowed_clients: str = ""
    server_key_file: str = ""

    @property
    def enabled(self) -> bool:
        """Whether any is set: then all that a role needs must be."""
        return bool(self.key_file or self.allowed_clients or self.server_key_file)
