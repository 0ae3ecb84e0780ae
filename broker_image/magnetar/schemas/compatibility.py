"""Whether a new schema fits those that a topic has.

Owns: the check of every strategy for every type. Imports: errors, definitions, key_values, strategies,
types; `avro.compatibility`. Source: Pulsar's checks: Avro's rules of resolution for Avro, JSON and
Protobuf; the name of the root message for ProtobufNative; a KeyValue fits if both parts do; where
the type is all there is, it must be the same. Names of records do not count, as in Java's
resolution: classes are renamed. Invariants: what fits under FULL fits under BACKWARD and FORWARD;
a schema always fits itself, except under ALWAYS_INCOMPATIBLE.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from magnetar.errors import IncompatibleSchema
from magnetar.schemas import key_values
from magnetar.schemas.definitions import content, parsed, root_message
from magnetar.schemas.strategies import Strategy
from magnetar.schemas.types import Schema, SchemaType

if TYPE_CHECKING:
    from avro.compatibility import ReaderWriterCompatibilityChecker


def check_compatible(strategy: Strategy, earlier: Sequence[Schema], new: Schema) -> None:
    """Refuse a schema that does not fit the earlier ones, oldest first (at least one). Raises
    IncompatibleSchema naming the strategy and what is in the way."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    for schema in earlier if strategy.transitive else earlier[-1:]:
        reason = _obstacle(strategy, schema, new)
        if reason is not None:
            begins = f"Error during schema compatibility check with strategy {strategy}"
            if schema.type is not new.type:
                begins = "Incompatible schema"
            raise IncompatibleSchema(
                f"{begins}: {reason}; change the schema, or the policy schemaCompatibilityStrategy"
            )


def _obstacle(strategy: Strategy, old: Schema, new: Schema) -> str | None:
    """Why `new` does not fit `old`; None if it does."""
    if old.type is not new.type:
        return f"exists schema type {old.type.name}, new schema type {new.type.name}"
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        return "no schema may follow another one"
    if content(old) == content(new):
        return None
    if new.type.is_avro:
        return _avro_obstacle(strategy, old, new)
    if new.type is SchemaType.KEY_VALUE:
        for name, before, after in zip(
            ("key", "value"), key_values.split(old), key_values.split(new), strict=True
        ):
            if (reason := _obstacle(strategy, before, after)) is not None:
                return f"{name}: {reason}"
        return None
    if new.type is SchemaType.PROTOBUF_NATIVE:
        before_root, after_root = root_message(old), root_message(new)
        if before_root != after_root:
            return f"the root message {before_root} became {after_root}"
    return None


def _avro_obstacle(strategy: Strategy, old: Schema, new: Schema) -> str | None:
    from avro.errors import AvroException

    before, after = parsed(old), parsed(new)
    for wanted, reader, writer, text in (
        (strategy.reads_earlier, after, before, "it cannot read what the earlier one wrote"),
        (strategy.is_read_by_earlier, before, after, "the earlier one cannot read it"),
    ):
        if wanted:
            try:
                found = _checker().get_compatibility(reader, writer)
            except RecursionError:
                return "the definitions refer to each other too deeply to be compared"
            except (AvroException, AttributeError, TypeError) as error:
                # The library trusts attributes that it does not check, aliases among them.
                return f"the definitions cannot be compared ({str(error)[:200]})"
            if found.compatibility.name != "compatible":
                what = sorted({kind.value for kind in found.incompatibilities})
                where = sorted(found.messages)
                return f"{text} ({', '.join(what)}: {'; '.join(where)[:200]})"
    return None


def _checker() -> ReaderWriterCompatibilityChecker:
    return cast("ReaderWriterCompatibilityChecker", _checker_type()())


@cache
def _checker_type() -> type:
    """The library's check, but for names of records."""
    from avro.compatibility import ReaderWriterCompatibilityChecker
    from avro.compatibility import SchemaType as AvroType

    class Checker(ReaderWriterCompatibilityChecker):
        def calculate_compatibility(self, reader: Any, writer: Any, location: list[str]) -> Any:
            if reader.type == writer.type == AvroType.RECORD:
                return self.check_reader_writer_record_fields(reader, writer, location)
            return super().calculate_compatibility(reader, writer, location)

    return Checker
