"""`magnetar namespaces`.

Owns: list, create, delete of namespaces, their owners and their policies. Imports: typer, rest,
screen; yaml to read values. Invariant: policies go by Pulsar's own names, as in manifests, REST and
pulsar-admin.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from magnetar.cli.failures import WrongUsage
from magnetar.cli.names import namespace_of, pairs_of
from magnetar.cli.rest import create_namespace, namespace_path
from magnetar.cli.session import Session, connected, group
from magnetar.policy_shapes import UNSET_POLICIES

Namespace = Annotated[str, typer.Argument(help="tenant/namespace.")]
OWNERS = "/magnetar/v1/namespaces/owners"
NOT_POLICIES = ("bundles", "auth_policies", "replication_clusters")


namespaces = group("List, create, delete namespaces; their policies.")
policies = group("Policies of a namespace: get, set.")
namespaces.add_typer(policies, name="policies")


def _is_set(key: str, value: Any) -> bool:
    """Whether it is a policy with another value than one that was never set."""
    return key not in NOT_POLICIES and value != UNSET_POLICIES.get(key)


@namespaces.command("list")
@connected
def list_(
    session: Session,
    tenant: Annotated[str, typer.Argument(help="Of one tenant; default: all.")] = "",
) -> None:
    """Namespaces, with their bundles and the custom resources that own them."""
    tenants = [tenant] if tenant else session.rest.get("/admin/v2/tenants")
    owners = session.rest.get(OWNERS)
    rows = []
    for name in [
        name for owner in tenants for name in session.rest.get(f"/admin/v2/namespaces/{owner}")
    ]:
        found = session.rest.get(f"/admin/v2/namespaces/{name}")
        chosen = {key: value for key, value in found.items() if _is_set(key, value)}
        rows.append(
            {
                "namespace": name,
                "bundles": found["bundles"]["numBundles"],
                "owner": owners.get(name, ""),
                "policies": chosen,
            }
        )
    session.screen.show(
        rows,
        lambda: session.screen.table(
            ("namespace", "bundles", "owner", "policies"),
            [
                (
                    row["namespace"],
                    row["bundles"],
                    row["owner"] or "-",
                    ", ".join(sorted(row["policies"])) or "-",
                )
                for row in rows
            ],
        ),
    )


@namespaces.command()
@connected
def create(
    session: Session,
    namespace: Namespace,
    bundles: Annotated[
        int,
        typer.Option(
            "--bundles", "-b", min=1, help="Parts in which its topics are spread over brokers."
        ),
    ] = 4,
) -> None:
    """Create a namespace, and its tenant if there is none."""
    name = namespace_of(namespace)
    create_namespace(session.rest, name, {"bundles": {"numBundles": bundles}})
    session.screen.done(
        f"namespace {name} created with {bundles} bundles", namespace=str(name), bundles=bundles
    )


@namespaces.command()
@connected
def delete(
    session: Session,
    namespace: Namespace,
    force: Annotated[bool, typer.Option("--force", "-f", help="With all topics in it.")] = False,
) -> None:
    """Delete a namespace."""
    name = namespace_of(namespace)
    session.rest.delete(namespace_path(name), {"force": force})
    session.screen.done(f"namespace {name} deleted", namespace=str(name))


@namespaces.command()
@connected
def owner(
    session: Session,
    namespace: Namespace,
    release: Annotated[
        bool,
        typer.Option(
            "--release", help="It has no owner any more. A resource that exists takes it again."
        ),
    ] = False,
) -> None:
    """The TopicNamespace that owns a namespace, and the fields that it sets."""
    name = namespace_of(namespace)
    path = f"/magnetar/v1/namespaces/{name}/owner"
    found: dict[str, Any] = session.rest.get(path)
    if not release or not found["owner"]:
        fields = ", ".join(found["owned"]) or "no fields"
        text = (
            f"{found['owner']} owns {name} and sets {fields}"
            if found["owner"]
            else f"{name} has no owner"
        )
        session.screen.show(found, lambda: session.screen.line(text))
        return
    session.rest.delete(path)
    session.screen.done(
        f"namespace {name} released by {found['owner']}",
        namespace=str(name),
        released=found["owner"],
    )


@policies.command("get")
@connected
def get(
    session: Session,
    namespace: Namespace,
    policy: Annotated[str, typer.Argument(help="One of them; default: all.")] = "",
) -> None:
    """Policies that are set."""
    name = namespace_of(namespace)
    found: dict[str, Any] = session.rest.get(namespace_path(name))
    chosen = {
        key: value for key, value in found.items() if policy in ("", key) and _is_set(key, value)
    }
    nothing = f"{policy} is not set for {name}" if policy else f"no policy is set for {name}"
    session.screen.show(
        chosen,
        lambda: (
            session.screen.facts(sorted(chosen.items())) if chosen else session.screen.line(nothing)
        ),
    )


@policies.command("set")
@connected
def set_(
    session: Session,
    namespace: Namespace,
    values: Annotated[
        list[str], typer.Argument(help="policy=value; value in YAML or JSON, null takes it away.")
    ],
) -> None:
    """Set policies, such as message_ttl_in_seconds=3600 or
    'retention_policies={retentionTimeInMinutes: 60, retentionSizeInMB: 512}'."""
    import yaml

    name, changes = namespace_of(namespace), {}
    for key, text in pairs_of(values, "policy").items():
        if key in NOT_POLICIES:
            raise WrongUsage(
                f"{key} is not a policy that can be set",
                "see `magnetar namespaces policies get` for those that are",
            )
        try:
            changes[key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise WrongUsage(
                f"{key}: {text!r} is not YAML",
                "write a number, true, a word, or {name: value, ...}",
            ) from error
    session.rest.patch(f"/magnetar/v1/namespaces/{name}/policies", changes)
    session.screen.done(
        f"policies of {name} changed: {', '.join(sorted(changes))}",
        namespace=str(name),
        changed=changes,
    )
