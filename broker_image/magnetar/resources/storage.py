"""`spec.storage`: where messages are kept.

Owns: its fields, limits and rules. Imports: resources.base. Invariant: what says where the messages
are cannot change, because brokers would begin on empty storage.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from magnetar.resources.base import Model, Quantity, Rule, StatusModel, immutable


class SecretReference(Model):
    """A secret in the resource's own namespace."""

    name: str = Field(min_length=1, max_length=253, description="Its name.")


class VolumeClaim(Model):
    """The one claim that all brokers and jobs of the cluster mount."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.existingClaim == '' || self.storageClassName == ''",
            "volumeClaim: set either existingClaim or storageClassName, not both",
            lambda claim: claim.existing_claim == "" or claim.storage_class_name == "",
        ),
    )

    existing_claim: str = Field(
        default="",
        max_length=253,
        description="Name of a claim that you manage; empty = the operator makes <name>-storage "
        "and never deletes it.",
        json_schema_extra=immutable(
            "the messages are in the claim named first; make a new cluster to use another one"
        ),
    )
    storage_class_name: str = Field(
        default="",
        max_length=253,
        description="Storage class of the claim; empty = the Kubernetes cluster's default class.",
        json_schema_extra=immutable("a claim cannot change its class"),
    )
    size: Quantity = Field(
        default="10Gi",
        description="Capacity of the claim; may grow, if its class allows expansion, and go back "
        "to what the claim has.",
    )
    access_modes: tuple[Literal["ReadWriteMany", "ReadWriteOnce"], ...] = Field(
        default=("ReadWriteMany",),
        min_length=1,
        max_length=1,
        description="ReadWriteMany for brokers on several nodes; ReadWriteOnce keeps all of them "
        "on one node.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"}
        | immutable("a claim cannot change its access modes"),
    )


class ClaimStatus(StatusModel):
    """The claim that the operator made for the messages."""

    claim: str = Field(default="", description="Its name.")
    storage_class_name: str = Field(
        default="", description="Its StorageClass; empty = it has none."
    )
    size: str = Field(default="", max_length=32, description="What it asks for.")
    capacity: str = Field(
        default="", max_length=32, description="What its volume has; empty = it is not bound."
    )


_OLD, _NEW = "oldSelf.spec.storage.volumeClaim", "self.spec.storage.volumeClaim"


def _at_least(size: str) -> str:
    return f"quantity(string({_NEW}.size)).compareTo(quantity({size})) >= 0"


KEEPS_SIZE = Rule(
    f"!has({_NEW}) || !has({_OLD}) || {_at_least(f'string({_OLD}.size)')} || (has(self.status) && "
    "has(self.status.storage) && ("
    + " || ".join(
        f"has(self.status.storage.{part}) && {_at_least(f'self.status.storage.{part}')}"
        for part in ("size", "capacity")
    )
    + "))",
    "spec.storage.volumeClaim.size: a claim cannot shrink; give the old size or more, or what "
    "status.storage says that the claim has",
)
"""Of the whole resource, for its status says what the claim really has: a size that it never got
may be taken back."""


class S3Credentials(Model):
    """Keys that brokers show to the store, from a secret."""

    secret_ref: SecretReference = Field(
        description="The secret; a new content rolls brokers and coordinators."
    )
    access_key_id: str = Field(
        default="AWS_ACCESS_KEY_ID",
        min_length=1,
        max_length=253,
        description="Its entry with the key's id.",
    )
    secret_access_key: str = Field(
        default="AWS_SECRET_ACCESS_KEY",
        min_length=1,
        max_length=253,
        description="Its entry with the key.",
    )
    session_token: str = Field(
        default="",
        max_length=253,
        description="Its entry with a session token; empty = there is none.",
    )


class S3Storage(Model):
    """A prefix in a bucket, addressed by path. The store must offer conditional writes
    (If-None-Match), which brokers try at their start."""

    bucket: str = Field(
        min_length=3,
        max_length=63,
        pattern=r"^[a-z0-9][a-z0-9.-]*[a-z0-9]$",
        description="The bucket, which must exist.",
        json_schema_extra=immutable(
            "the messages are in the bucket named first; make a new cluster to use another one"
        ),
    )
    prefix: str = Field(
        default="",
        max_length=500,
        pattern=r"^([A-Za-z0-9!_.*()-]+(/[A-Za-z0-9!_.*()-]+)*)?$",
        description="Where in the bucket; empty = <namespace>/<name> of this resource.",
        json_schema_extra=immutable(
            "the messages are below the prefix named first; make a new cluster to use another one"
        ),
    )
    region: str = Field(
        default="",
        max_length=63,
        pattern=r"^[a-z0-9-]*$",
        description="The bucket's region; empty = us-east-1.",
    )
    endpoint: str = Field(
        default="",
        max_length=300,
        pattern=r"^(https?://[A-Za-z0-9.:_\[\]-]+)?$",
        description="https://host:port, or http://host:port inside a trusted network, of a store "
        "that is not AWS; empty = AWS.",
    )
    credentials: S3Credentials | None = Field(
        default=None,
        description="Keys from a secret. Without it brokers use the identity of their service "
        "account (podTemplate.serviceAccountAnnotations).",
    )


class Storage(Model):
    """Where messages are kept: exactly one of `volumeClaim` and `s3`."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.volumeClaim) != has(self.s3)",
            "storage: set exactly one of volumeClaim and s3",
            lambda storage: (storage.volume_claim is None) != (storage.s3 is None),
        ),
        Rule(
            "has(self.s3) == has(oldSelf.s3)",
            "storage: a cluster stays with the kind of storage it was made with; make a new "
            "cluster to use another one",
        ),
    )

    volume_claim: VolumeClaim | None = Field(
        default=None, description="A volume that all brokers of the cluster share."
    )
    s3: S3Storage | None = Field(
        default=None,
        description="A bucket of an S3-compatible store.",
    )
