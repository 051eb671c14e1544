"""A payload, built once, and an interpreter that has vLLM but neither Penstock nor gRPC."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.deploy.payloads import (
    bare_python,
    build_payload,
    installed_wheels,
    run_stage,
    source_wheel,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the payload of this checkout, with gRPC for this interpreter."""
    place = tmp_path_factory.mktemp("payload")
    return build_payload(place / "payload", source_wheel(place), installed_wheels(place / "wheels"))


@pytest.fixture(scope="session")
def slim_payload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it without gRPC and protobuf."""
    place = tmp_path_factory.mktemp("slim")
    return build_payload(place / "payload", source_wheel(place))


@pytest.fixture(scope="session")
def slim_stage(slim_payload: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stage an engine part without gRPC."""
    target = tmp_path_factory.mktemp("slim-stage") / "engine"
    run_stage(slim_payload, target)
    return target


@pytest.fixture
def staged(slim_stage: Path, tmp_path: Path) -> Path:
    """Copy it, for a test to damage."""
    target: Path = shutil.copytree(slim_stage, tmp_path / "engine")
    return target


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an engine's image without Penstock."""
    return bare_python(tmp_path_factory.mktemp("image") / "venv", "penstock-vllm")


@pytest.fixture(scope="session")
def image_without_grpc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an engine's image with neither Penstock nor gRPC."""
    return bare_python(tmp_path_factory.mktemp("no-grpc") / "venv", "penstock-vllm", "grpcio")
