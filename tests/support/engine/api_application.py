"""vLLM's own API application and launcher, whichever modules this vLLM has them in, over a client that has no engine."""

from __future__ import annotations

import importlib
import warnings
from types import SimpleNamespace
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's and its dependencies' own
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    def _first(*names: str) -> Any:
        """Return the first of these modules that this vLLM has."""
        for name in names:
            try:
                return importlib.import_module(f"vllm.entrypoints.{name}")
            except ImportError:
                continue
        raise ImportError(names)

    launcher = _first("launchers.launcher", "launcher")
    _application = _first("launchers.app", "openai.api_server")
    _cli_args = _first("common.cli_args", "launchers.cli_args", "openai.cli_args")


def build_no_engine(engine: Any, vllm_config: Any) -> None:
    """Stand in for the constructor of vLLM's client, which starts the engines."""
    engine.vllm_config = vllm_config
    engine.output_handler = None
    engine.engine_core = SimpleNamespace(
        resources=SimpleNamespace(engine_dead=False), shutdown=lambda **_: None
    )


def client() -> Any:
    """Build the client of the engines, as vLLM's API server does before it builds its application."""
    make: Any = AsyncLLM
    return make(
        SimpleNamespace(
            ec_transfer_config=None,
            model_config=SimpleNamespace(served_model_name="tiny", model="/models/tiny"),
        )
    )


def application(*arguments: str, engine: Any) -> Any:
    """Build vLLM's application with these arguments of its command line, in front of *engine*."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that vLLM imports now
        args = _cli_args.make_arg_parser(FlexibleArgumentParser()).parse_args(["--model", "tiny", *arguments])
        app = _application.build_app(args, ("generate",), None)
    app.state.engine_client = engine
    app.state.log_stats = False
    return app
