"""``python -m penstock.instrumentation.check``: which hooks fit the installed vLLM, without an engine.

Exit codes: 0 for all is well, 1 where a hook does not fit or vLLM would not load the plugin, 2 where vLLM cannot be imported.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING

from penstock.instrumentation.core import settings
from penstock.instrumentation.hooks import PLUGIN_GROUP, Report, check_environment, format_json, format_text
from penstock.proto.version import DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def build_report(environ: Mapping[str, str]) -> Report:
    """Compare the hooks with the installed vLLM; changes nothing in it.

    Raises:
        ImportError: vLLM is not installed, or cannot be imported.

    """
    vllm = importlib.import_module("vllm")
    survey = importlib.import_module("penstock.instrumentation.vllm.survey").survey
    try:
        parsed = settings.parse(environ)
    except settings.SettingsError:
        parsed = None  # reported by check_environment()
    return Report(
        {
            "vLLM": str(vllm.__version__),
            "NIXL": _version("nixl"),
            "Python": platform.python_version(),
            "penstock": _version(DISTRIBUTION),
        },
        survey(parsed.hooks_disabled if parsed is not None else ()),
        check_environment(environ, [each.name for each in entry_points(group=PLUGIN_GROUP)]),
    )


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m penstock.instrumentation.check",
        description="Which of Penstock's hooks fit the vLLM that is installed here? Starts no engine and changes nothing.",
        epilog="Exit codes: 0 all is well; 1 a hook does not fit, or vLLM would not load the plugin; 2 no vLLM.",
    )
    parser.add_argument("--json", action="store_true", help="the answer for programs")
    options = parser.parse_args(arguments)
    # vLLM logs when it is imported.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = build_report(os.environ)
    except ImportError as error:
        sys.stderr.write(f"vLLM cannot be imported here: {error}; run this with the Python that runs vLLM\n")
        return 2
    sys.stdout.write((format_json if options.json else format_text)(report) + "\n")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
