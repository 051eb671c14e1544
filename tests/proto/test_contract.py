"""The wire contract is what peers of other versions rely on."""

import importlib
from collections import Counter
from pathlib import Path

import pytest

from tests.support.agent.descriptors import FILES, contract, enums, messages

GOLDEN = Path(__file__).parent / "golden" / "contract.txt"


def test_numbers_and_types_are_the_golden_ones() -> None:
    """A change of a number or a type breaks old peers; an addition shows as a diff to be looked at."""
    assert "\n".join(sorted(contract())) + "\n" == GOLDEN.read_text()


@pytest.mark.parametrize("enum", enums(), ids=lambda enum: enum.name)
def test_enum_values_carry_their_enum_s_name(enum) -> None:
    """The zero value is UNSPECIFIED and all share its prefix, or the words of names.label are wrong."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")

    assert enum.values[0].number == 0
    assert enum.values[0].name.endswith("_UNSPECIFIED")
    assert all(value.name.startswith(prefix) for value in enum.values)


def test_columns_of_samples_are_packed_numbers() -> None:
    """Dense data is columnar: every field of a samples message is repeated and a number."""
    columns = [
        field
        for message in messages()
        if message.name in ("TransferSamples", "ProbeSamples")
        for field in message.fields
    ]

    assert len(columns) > 15
    assert all(field.is_repeated and field.is_packed for field in columns)


def test_message_names_are_unique() -> None:
    """One package, eight files: a name means one thing."""
    counts = Counter(message.full_name for message in messages())

    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("file", FILES)
def test_only_files_with_a_service_have_grpc_code(file: str) -> None:
    """The others would import grpc for nothing."""
    module = importlib.import_module(f"penstock.proto.v1.{file}_pb2")
    assert module.__file__ is not None
    generated = Path(module.__file__).with_name(f"{file}_pb2_grpc.py")

    assert generated.exists() == bool(module.DESCRIPTOR.services_by_name)
