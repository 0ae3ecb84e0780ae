"""The generated protocol modules and the schema agree, and the schema keeps its own rule."""

from __future__ import annotations

import pytest

from dev import proto
from magnetar.errors import WireCode
from magnetar.wire import pulsar_api_pb2 as api


@pytest.mark.slow
def test_generated_files_are_what_the_schema_generates() -> None:
    """A hand edit or a forgotten `python -m dev.proto` shows here."""
    assert proto.drifted() == []


def test_every_sub_message_has_number_and_name_of_its_type() -> None:
    """What `decode_command` relies on."""
    fields = {
        field.number: field.name
        for field in api.BaseCommand.DESCRIPTOR.fields
        if field.name != "type"
    }
    assert fields == {number: name.lower() for name, number in api.BaseCommand.Type.items()}


def test_error_codes_of_errors_and_wire_are_the_same_set() -> None:
    """A code that `errors` can send exists in the protocol, and the other way round."""
    assert {int(code) for code in WireCode} == set(api.ServerError.values())
