"""What all custom resources share.

Owns: group and version, the base of every model, rules (CEL and Python from one declaration),
conditions, metadata. Imports: pydantic. Invariants: field names are camelCase in manifests and
snake_case here; an unknown field is refused by name, so a typing error never passes for a setting;
every `Rule` without `oldSelf` holds in Python exactly when it holds on the API server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue

GROUP = "magnetar.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

QUANTITY_PATTERN = r"^([0-9]+([.][0-9]+)?|[.][0-9]+)([munkKMGTPE]|[KMGTPE]i|[eE][0-9]+)?$"
NAME_LENGTH_MAX = 40
"""Children add suffixes to a resource's name and must stay below the 63 characters of a label."""

# Kubernetes takes `cpu: 1` and `cpu: "1"` alike.
Quantity = Annotated[
    str,
    BeforeValidator(
        lambda value: (
            str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        )
    ),
    Field(pattern=QUANTITY_PATTERN, max_length=32),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": QUANTITY_PATTERN,
            "maxLength": 32,
        }
    ),
]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a model: `expression` in CEL for the API server, `holds` the same in Python
    (None: it compares with the old object)."""

    expression: str
    message: str
    holds: Callable[[Any], bool] | None = None

    def manifest(self) -> dict[str, str]:
        return {"rule": self.expression, "message": self.message}


def immutable(remedy: str) -> dict[str, Any]:
    """Schema extension of a field that keeps its first value."""
    return {
        "x-kubernetes-validations": [Rule("self == oldSelf", f"is immutable: {remedy}").manifest()]
    }


class Model(BaseModel):
    """Base of every part of a spec."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _obeys_rules(self) -> Self:
        for rule in self.RULES:
            if rule.holds is not None and not rule.holds(self):
                raise ValueError(rule.message)
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.RULES:
            schema["x-kubernetes-validations"] = [rule.manifest() for rule in cls.RULES]
        return schema


class StatusModel(Model):
    """Base of every part of a status: fields of a newer operator are skipped, not refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True
    )


class Condition(StatusModel):
    """One aspect of the object's state, in the form that `kubectl wait` understands."""

    type: str = Field(
        description="Available, Progressing, Degraded, Ready, Autoscaling, Certificate or "
        "Protected."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    reason: str = Field(
        description="One word for programs; the list is in the operator's conditions module."
    )
    message: str = Field(default="", description="A sentence for people: what is, and what to do.")
    last_transition_time: str = Field(
        description="When `status` last changed, RFC 3339.",
        json_schema_extra={"format": "date-time"},
    )
    observed_generation: int = Field(
        default=0, description="Generation of the object that this condition speaks of."
    )


class Trouble(StatusModel):
    """One thing that is wrong."""

    reason: str = Field(description="One word for programs, as in conditions.")
    about: str = Field(
        default="", description="The pod or object concerned; absent = the resource as a whole."
    )
    message: str = Field(default="", description="A sentence for people: what is, and what to do.")
    since: str = Field(
        description="When it was first seen, RFC 3339.", json_schema_extra={"format": "date-time"}
    )


def keyed_by(field: str) -> dict[str, Any]:
    """A list whose items are merged by that field."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}


TROUBLES: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
TROUBLES_DESCRIPTION = (
    "Everything that is wrong, the most serious first: at most 20, and 5 of one reason. Degraded names "
    "the first and counts them."
)
CONDITIONS = keyed_by("type")
BY_NAME = keyed_by("name")


class Metadata(BaseModel):
    """The part of `metadata` that the operator reads."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True
    )

    name: str = Field(min_length=1)
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class CustomResource(BaseModel):
    """Base of the root objects; subclasses add `spec` and `status`."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    RULES: ClassVar[tuple[Rule, ...]] = ()
    NEVER_DEFAULTED: ClassVar[frozenset[tuple[str, ...]]] = frozenset({("spec", "clusterRef")})
    """Parts of the resource where the API server adds nothing: an unknown field is what the user
    wants, and nothing is done without it. One of a reference may say which cluster is meant."""

    api_version: str
    kind: str
    metadata: Metadata

    @model_validator(mode="after")
    def _obeys_rules(self) -> Self:
        for rule in self.RULES:
            if rule.holds is not None and not rule.holds(self):
                raise ValueError(rule.message)
        return self

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def reference(self) -> str:
        """`Kind namespace/name`, as events and records name it."""
        return f"{self.kind} {self.namespace}/{self.name}"


def sentence_of(error: ValidationError) -> str:
    """The first problem of a validation as `field: what is wrong (got value)`, and how many more
    there are."""
    problems = error.errors(include_url=False)
    first = problems[0]
    place = ".".join(str(part) for part in first["loc"]) or "manifest"
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        text = "is not a field of this kind; check the spelling (kubectl explain lists the fields)"
    got = (
        ""
        if first["type"] in ("missing", "value_error", "extra_forbidden")
        else f" (got {first.get('input')!r:.60})"
    )
    more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{place}: {text}{got}{more}"
