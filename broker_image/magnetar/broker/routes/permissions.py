"""Routes of permissions.

Owns: what roles may do, by namespace, topic and subscription. Imports: FastAPI, administration.
Source: Pulsar's AuthPolicies, which is one policy of a namespace. Invariants: what was granted is
durable when 204 is answered, and returned as it came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.errors import InvalidRequest, NamespaceNotFound, TopicNotFound
from magnetar.names import NamespaceName
from magnetar.policy_shapes import ACTIONS
from magnetar.rest.answers import (
    NAMESPACE,
    NO_CONTENT,
    TOPIC,
    Namespace,
    Topic,
    body,
    shaped,
)
from magnetar.rest.rights import Asked
from magnetar.shapes import TEXTS, Choice, Items, Shape

KEY = "auth_policies"
BY_ROLE, BY_TOPIC, BY_SUBSCRIPTION = "namespace_auth", "destination_auth", "subscription_auth_roles"
NAMES = {"type": "array", "items": {"type": "string"}}
Granted = dict[str, Any]


def permission_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Permissions over `admin`."""
    router = APIRouter(tags=["permissions"], dependencies=asked)
    _add_subscriptions(router, admin)
    _add_namespaces(router, admin)
    _add_topics(router, admin)
    return router


async def _granted(admin: BrokerAdministration, name: NamespaceName, part: str) -> Granted:
    return dict(
        ((await admin.policies.policies(name, applied=False)).get(KEY) or {}).get(part) or {}
    )


async def _edit(
    admin: BrokerAdministration, name: NamespaceName, part: str, change: Callable[[Granted], None]
) -> None:
    def edit(policies: dict[str, Any]) -> None:
        stored = dict(policies.get(KEY) or {})
        granted = dict(stored.get(part) or {})
        change(granted)
        stored[part] = {known: what for known, what in granted.items() if what}
        policies[KEY] = stored

    try:
        await admin.policies.edit_policies(name, edit)
    except NamespaceNotFound as error:
        raise NamespaceNotFound.named(name, "Topic's namespace does not exist") from error


async def _names(request: Request, field: str, shape: Shape) -> list[str]:
    found: list[str] | None = await shaped(request, field, shape)
    if found is None:
        raise InvalidRequest(f"{field}: the body is empty; send a list of names")
    return found


def _add_subscriptions(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{NAMESPACE}/permissions/subscription")
    async def subscription_permissions(namespace: Namespace) -> Granted:
        """Return the roles that may use each subscription."""
        return await _granted(admin, namespace, BY_SUBSCRIPTION)

    path = f"{NAMESPACE}/permissions/subscription/{{subscription}}"

    @router.post(path, status_code=NO_CONTENT, openapi_extra=body("roles", NAMES))
    async def grant_subscription(namespace: Namespace, subscription: str, request: Request) -> None:
        """Let roles use a subscription."""
        roles = await _names(request, f"permissions.{subscription}", TEXTS)
        await _edit(
            admin,
            namespace,
            BY_SUBSCRIPTION,
            lambda granted: granted.update({subscription: roles}),
        )

    @router.delete(f"{NAMESPACE}/permissions/{{subscription}}/{{role}}", status_code=NO_CONTENT)
    async def revoke_subscription(namespace: Namespace, subscription: str, role: str) -> None:
        """Let a role not use a subscription any more."""
        if role not in (await _granted(admin, namespace, BY_SUBSCRIPTION)).get(subscription, ()):
            raise TopicNotFound(
                f"permissions: role {role!r} has none on subscription {subscription!r} of "
                f"namespace {namespace}"
            )

        def change(granted: Granted) -> None:
            granted[subscription] = [
                known for known in granted.get(subscription, ()) if known != role
            ]

        await _edit(admin, namespace, BY_SUBSCRIPTION, change)


def _add_namespaces(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{NAMESPACE}/permissions")
    async def permissions(namespace: Namespace) -> Granted:
        """Return what each role may do in a namespace."""
        return await _granted(admin, namespace, BY_ROLE)

    @router.post(
        f"{NAMESPACE}/permissions/{{role}}",
        status_code=NO_CONTENT,
        openapi_extra=body("actions", NAMES),
    )
    async def grant(namespace: Namespace, role: str, request: Request) -> None:
        """Let a role do something in a namespace."""
        actions = await _names(request, f"permissions.{role}", Items(Choice(*ACTIONS)))
        await _edit(
            admin,
            namespace,
            BY_ROLE,
            lambda granted: granted.update({role: actions}),
        )

    @router.delete(f"{NAMESPACE}/permissions/{{role}}", status_code=NO_CONTENT)
    async def revoke(namespace: Namespace, role: str) -> None:
        """Let a role do nothing in a namespace any more."""
        await _edit(admin, namespace, BY_ROLE, lambda granted: granted.pop(role, None))


def _add_topics(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.get(f"{TOPIC}/permissions")
    async def topic_permissions(topic: Topic) -> Granted:
        """Return what each role may do with a topic, by its own permissions and those of its
        namespace."""
        own = (await _granted(admin, topic.namespace_name, BY_TOPIC)).get(str(topic.base), {})
        of_namespace = await _granted(admin, topic.namespace_name, BY_ROLE)
        return {
            role: sorted({*of_namespace.get(role, ()), *own.get(role, ())})
            for role in {**of_namespace, **own}
        }

    @router.post(
        f"{TOPIC}/permissions/{{role}}",
        status_code=NO_CONTENT,
        openapi_extra=body("actions", NAMES),
    )
    async def grant_topic(topic: Topic, role: str, request: Request) -> None:
        """Let a role do something with a topic."""
        actions = await _names(request, f"permissions.{role}", Items(Choice(*ACTIONS)))

        def change(granted: Granted) -> None:
            granted[str(topic.base)] = {**granted.get(str(topic.base), {}), role: actions}

        await _edit(admin, topic.namespace_name, BY_TOPIC, change)

    @router.delete(f"{TOPIC}/permissions/{{role}}", status_code=NO_CONTENT)
    async def revoke_topic(topic: Topic, role: str) -> None:
        """Take from a role what it may do with a topic by the topic's own permissions."""

        def change(granted: Granted) -> None:
            own = granted.get(str(topic.base), {})
            granted[str(topic.base)] = {known: what for known, what in own.items() if known != role}

        await _edit(admin, topic.namespace_name, BY_TOPIC, change)
