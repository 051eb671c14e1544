"""Unpacks of a wheel what Python reads (code, data, metadata), without libraries and headers: unpack_python.py WHEEL DIRECTORY."""

from __future__ import annotations

import sys
import zipfile
from pathlib import PurePosixPath
from typing import Final

_WANTED: Final = frozenset({".jinja", ".json", ".md", ".py", ".pyi", ".txt", ".typed", ".yaml"})


def wanted(name: str) -> bool:
    """Tell whether Python may read the file of that name; all of the distribution's own metadata is."""
    path = PurePosixPath(name)
    return path.suffix in _WANTED or path.parts[0].endswith(".dist-info")


def main() -> None:
    """Unpack."""
    wheel, directory = sys.argv[1:]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory, [name for name in archive.namelist() if wanted(name)])


if __name__ == "__main__":
    main()
