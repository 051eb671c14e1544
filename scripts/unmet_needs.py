"""Prints what installed distributions require and this environment has not, or in another version.

Usage: unmet_needs.py NAME [NAME …]. Without PyTorch and what is built for one of its versions: these are the environment's.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

_LEFT = ("torch", "setuptools", "triton", "nixl")


def unmet(names: list[str]) -> list[str]:
    """Return the requirements of these distributions that are not met, as pip takes them."""
    needs = [Requirement(each) for name in names for each in requires(name) or ()]
    return [
        f"{need.name}{need.specifier}"
        for need in needs
        if not need.name.startswith(_LEFT)
        and (need.marker is None or need.marker.evaluate({"extra": ""}))
        and not _is_met(need)
    ]


def _is_met(need: Requirement) -> bool:
    try:
        return need.specifier.contains(version(need.name), prereleases=True)
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    for each in unmet(sys.argv[1:]):
        print(each)
