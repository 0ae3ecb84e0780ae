"""From a pydantic model to a structural OpenAPI schema.

Owns: the conversion. Imports: pydantic. Pure. Invariants: the result has no reference, no `title`
and no nullable alternative; nested objects of which every field has a default are defaulted
themselves, so that the API server fills in all of them; every property has a description.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]
_DROPPED = ("title", "$defs", "const")


def structural_schema(model: type[BaseModel]) -> Schema:
    """The schema of `model` with its manifest's field names.

    Raises ValueError naming a field without a description, or with limits that limit nothing.
    """
    raw = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(raw, raw.get("$defs", {}), model.__name__)


def _convert(node: Schema, definitions: Schema, place: str) -> Schema:
    node, _ = _resolve(node, definitions)
    result = {key: value for key, value in node.items() if key not in _DROPPED}
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if result.get("type") in ("array", "object") and {"minLength", "maxLength"} & result.keys():
        raise ValueError(
            f"{place} has the limits of a text; declare those of a list before its validators"
        )
    if "const" in node:
        result["enum"] = [node["const"]]
    if result.get("additionalProperties") is False:
        # a structural schema prunes unknown fields; strict clients report them
        del result["additionalProperties"]
    elif isinstance(result.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(
            result["additionalProperties"], definitions, f"{place}.*"
        )
    if "items" in result:
        result["items"] = _convert(result["items"], definitions, f"{place}[]")
    if "properties" in result:
        result["properties"] = {
            name: _property(child, definitions, f"{place}.{name}", name in node.get("required", ()))
            for name, child in node["properties"].items()
        }
    return result


def _property(node: Schema, definitions: Schema, place: str, required: bool) -> Schema:
    _, optional = _resolve(node, definitions)
    converted = _convert(node, definitions, place)
    if not converted.get("description"):
        raise ValueError(f"{place} has no description")
    if converted.get("default", ...) is None:
        del converted["default"]
    filled = (
        "properties" in converted and not required and not optional and "default" not in converted
    )
    if filled:
        converted["default"] = complete_default(converted)
    return converted


def without_defaults(schema: Schema) -> Schema:
    """The schema of what a program writes in full: the API server is to fill in nothing that the
    program has left out."""
    result = {key: value for key, value in schema.items() if key != "default"}
    for part in ("items", "additionalProperties"):
        if isinstance(result.get(part), dict):
            result[part] = without_defaults(result[part])
    if "properties" in result:
        result["properties"] = {
            name: without_defaults(child) for name, child in result["properties"].items()
        }
    return result


def complete_default(schema: Schema) -> Schema:
    """The defaults of an object's fields as one value: the API server checks rules on a default
    before it fills in nested ones."""
    return {
        name: child["default"] for name, child in schema["properties"].items() if "default" in child
    }


def _resolve(node: Schema, definitions: Schema) -> tuple[Schema, bool]:
    """The node with its reference replaced, its own keys winning; and whether it may be absent
    (`X | None`)."""
    optional = False
    if "anyOf" in node and {"type": "null"} in node["anyOf"]:
        (other,) = (choice for choice in node["anyOf"] if choice != {"type": "null"})
        node, optional = (
            {**other, **{key: value for key, value in node.items() if key != "anyOf"}},
            True,
        )
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        rest = {key: value for key, value in node.items() if key != "$ref"}
        node = {**target, **rest}
    return node, optional
