"""Routes of policies.

Owns: `/admin/v2/namespaces/T/N/<name>` and `/admin/v2/persistent/T/N/topic/<name>` for the rows of
policy_table, and the few routes that a row cannot say (quotas by type, properties by key). Imports:
FastAPI, administration, policies, policy_table. Source: Pulsar's admin API. Invariants: what was PUT
or POSTed is checked before it is stored, durable when 204 is answered, and returned as it came; GET
of a policy that is not set has no body unless Pulsar answers with a value; with `applied` it is what
holds for the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.convertors import Convertor, register_url_convertor

from magnetar.broker.administration.administration import BrokerAdministration
from magnetar.broker.routes.policy_table import (
    NAMESPACE_POLICIES,
    NO_QUOTA,
    TOPIC_POLICIES,
    PolicyRoute,
)
from magnetar.broker.routes.subscriptions import PROPERTIES
from magnetar.errors import InvalidRequest, PreconditionFailed
from magnetar.names import NamespaceName, TopicName
from magnetar.policies import backlog_quota
from magnetar.policy_shapes import BACKLOG_QUOTA, DESTINATION_STORAGE, MESSAGE_AGE
from magnetar.rest.answers import (
    NAMESPACE,
    NO_CONTENT,
    TOPIC,
    Namespace,
    Topic,
    body,
    body_of,
    namespace_name,
    object_of,
    strings_of,
    text_answer,
    text_of,
    topic_name,
)
from magnetar.rest.rights import Asked

Target = Callable[..., NamespaceName | TopicName]
NamespacePolicy = Annotated[str, Path(json_schema_extra={"enum": list(NAMESPACE_POLICIES)})]
TopicPolicy = Annotated[str, Path(json_schema_extra={"enum": list(TOPIC_POLICIES)})]
QUOTAS = "backlog_quota_map"
ANY = {"description": "Pulsar's JSON of this policy"}


def _convertor(names: Iterable[str]) -> Convertor[str]:
    """Matches exactly the names of a table, so that any other path stays 404 and a wrong method
    405."""

    class Named(Convertor[str]):
        # what is longer first: one name may begin another
        regex = "|".join(sorted(names, key=len, reverse=True))

        def convert(self, value: str) -> str:
            return value

        def to_string(self, value: str) -> str:
            return value

    return Named()


register_url_convertor("namespace_policy", _convertor(NAMESPACE_POLICIES))
register_url_convertor("topic_policy", _convertor(TOPIC_POLICIES))
register_url_convertor("domain", _convertor(("persistent", "non-persistent")))
register_url_convertor("bundle", _convertor(("0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}",)))


def policy_router(admin: BrokerAdministration, asked: Asked) -> APIRouter:
    """Policies of namespaces and topics over `admin`."""
    router = APIRouter(tags=["policies"], dependencies=asked)
    _add_namespace_policies(router, admin)
    _add_topic_policies(router, admin)
    _add_removal(router, admin)
    for base, target in ((NAMESPACE, namespace_name), (TOPIC, topic_name)):
        _add_quotas(router, admin, base, target)
        _add_properties(router, admin, base, target)
    return router


# --- one row each ---------------------------------------------------------------------------------


async def _write(
    admin: BrokerAdministration, target: NamespaceName | TopicName, row: PolicyRoute, value: Any
) -> None:
    """Set one policy, or remove it (None). Raises what `Policies.edit_policies` does, in Pulsar's
    words where the value is out of bounds."""

    def edit(policies: dict[str, Any]) -> None:
        policies[row.key] = value

    try:
        await admin.references.check(row.key, value, target)
        await admin.policies.edit_policies(target, edit)
    except PreconditionFailed as error:
        if row.words and error.fault.startswith(f"{row.key}: "):
            raise PreconditionFailed(row.words, f"{error.fault}; {error.remedy}") from error
        raise


async def _remove(
    admin: BrokerAdministration, target: NamespaceName | TopicName, row: PolicyRoute
) -> None:
    await admin.policies.edit_policies(target, lambda policies: policies.update({row.key: None}))


def _add_namespace_policies(router: APIRouter, admin: BrokerAdministration) -> None:
    path = f"{NAMESPACE}/{{policy:namespace_policy}}"

    @router.get(path)
    async def read(namespace: Namespace, policy: NamespacePolicy) -> Response:
        """Return a policy of a namespace."""
        row = NAMESPACE_POLICIES[policy]
        return row.answered((await admin.policies.policies(namespace, applied=False)).get(row.key))

    @router.put(path, status_code=NO_CONTENT, openapi_extra=body("the policy", ANY))
    @router.post(path, status_code=NO_CONTENT, openapi_extra=body("the policy", ANY))
    async def write(namespace: Namespace, policy: NamespacePolicy, request: Request) -> Response:
        """Set a policy of a namespace."""
        row = NAMESPACE_POLICIES[policy]
        value = await (text_of(request) if row.text else body_of(request))
        await _write(admin, namespace, row, value)
        return Response(status_code=row.written)

    @router.delete(path, status_code=NO_CONTENT)
    async def remove(namespace: Namespace, policy: NamespacePolicy) -> None:
        """Remove a policy of a namespace."""
        await _remove(admin, namespace, NAMESPACE_POLICIES[policy])

    @router.delete(
        f"{NAMESPACE}/removeOffloadPolicies", status_code=NO_CONTENT, include_in_schema=False
    )
    async def remove_offload(namespace: Namespace) -> None:
        """Remove the offload policies of a namespace."""
        await _remove(admin, namespace, NAMESPACE_POLICIES["offloadPolicies"])

    @router.post(f"{NAMESPACE}/resourcegroup/{{group}}", status_code=NO_CONTENT)
    async def set_group(namespace: Namespace, group: str) -> None:
        """Name the resource group of a namespace."""
        await _write(admin, namespace, NAMESPACE_POLICIES["resourcegroup"], group)


def _add_topic_policies(router: APIRouter, admin: BrokerAdministration) -> None:
    path = f"{TOPIC}/{{policy:topic_policy}}"

    @router.get(path)
    async def read(
        topic: Topic,
        policy: TopicPolicy,
        applied: bool = False,
    ) -> Response:
        """Return a policy of a topic; with `applied` that of its namespace, or else what is so
        without a policy, where it has none."""
        row = TOPIC_POLICIES[policy]
        _refuse_partition(topic)
        found = (await admin.policies.policies(topic, applied=applied)).get(row.key)
        return row.answered(found, applied=applied)

    @router.put(path, status_code=NO_CONTENT, openapi_extra=body("the policy", ANY))
    @router.post(path, status_code=NO_CONTENT, openapi_extra=body("the policy", ANY))
    async def write(
        topic: Topic,
        policy: TopicPolicy,
        request: Request,
        ttl: Annotated[int | None, Query(alias="messageTTL")] = None,
    ) -> None:
        """Set a policy of a topic."""
        _refuse_partition(topic)
        # The time to live of a topic travels as a query parameter, everything else as a body.
        value = ttl if ttl is not None and policy == "messageTTL" else await body_of(request)
        await _write(admin, topic, TOPIC_POLICIES[policy], value)

    @router.delete(path, status_code=NO_CONTENT)
    async def remove(topic: Topic, policy: TopicPolicy) -> None:
        """Remove a policy of a topic."""
        _refuse_partition(topic)
        await _remove(admin, topic, TOPIC_POLICIES[policy])


def _refuse_partition(topic: TopicName) -> None:
    """Raises PreconditionFailed: partitions have the policies of their topic."""
    if topic.partition >= 0:
        raise PreconditionFailed(
            "Not allowed to set/get topic policy for a partition", f"ask for those of {topic.base}"
        )


def _add_removal(router: APIRouter, admin: BrokerAdministration) -> None:
    @router.delete(f"{TOPIC}/policies", status_code=NO_CONTENT)
    async def remove_all(topic: Topic) -> None:
        """Remove all policies of a topic."""

        def edit(policies: dict[str, Any]) -> None:
            for key in set(policies) - {"properties"}:
                policies[key] = None

        await admin.policies.edit_policies(topic, edit)


# --- what a row cannot say ------------------------------------------------------------------------


def _of(request: Request, target: Target) -> NamespaceName | TopicName:
    """The namespace or topic of a path that both levels have."""
    names = (
        ("domain", "tenant", "namespace", "topic")
        if target is topic_name
        else ("tenant", "namespace")
    )
    return target(*(request.path_params[name] for name in names))


def _add_quotas(router: APIRouter, admin: BrokerAdministration, base: str, target: Target) -> None:
    @router.get(f"{base}/backlogQuotaMap", operation_id=f"{target.__name__}_quotas")
    async def quotas(request: Request, applied: bool = False) -> dict[str, Any]:
        """Return the backlog quotas by their type."""
        name = _of(request, target)
        found = (await admin.policies.policies(name, applied=False)).get(QUOTAS) or {}
        if isinstance(name, NamespaceName) or not applied:
            return dict(found)
        of_all = (await admin.policies.policies(name.namespace_name, applied=False)).get(QUOTAS)
        return {DESTINATION_STORAGE: NO_QUOTA, MESSAGE_AGE: NO_QUOTA, **(of_all or {}), **found}

    @router.post(
        f"{base}/backlogQuota",
        status_code=NO_CONTENT,
        openapi_extra=body("BacklogQuota", ANY),
        operation_id=f"{target.__name__}_set_quota",
    )
    async def set_quota(
        request: Request,
        kind: Annotated[str, Query(alias="backlogQuotaType")] = DESTINATION_STORAGE,
    ) -> None:
        """Set a backlog quota."""
        given = BACKLOG_QUOTA.filled("backlogQuota", await object_of(request))
        quota = backlog_quota("backlogQuota", given)
        value = {
            "limit": quota.limit_bytes,
            "limitSize": quota.limit_bytes,
            "limitTime": quota.limit_s,
            "policy": quota.policy,
        }

        def edit(policies: dict[str, Any]) -> None:
            policies[QUOTAS] = {**policies.get(QUOTAS, {}), _known_quota(kind): value}

        await admin.policies.edit_policies(_of(request, target), edit)

    @router.delete(
        f"{base}/backlogQuota",
        status_code=NO_CONTENT,
        operation_id=f"{target.__name__}_remove_quota",
    )
    async def remove_quota(
        request: Request,
        kind: Annotated[str, Query(alias="backlogQuotaType")] = DESTINATION_STORAGE,
    ) -> None:
        """Remove a backlog quota."""

        def edit(policies: dict[str, Any]) -> None:
            left = {
                name: quota
                for name, quota in policies.get(QUOTAS, {}).items()
                if name != _known_quota(kind)
            }
            policies[QUOTAS] = left or None

        await admin.policies.edit_policies(_of(request, target), edit)


def _known_quota(kind: str) -> str:
    if kind not in (DESTINATION_STORAGE, MESSAGE_AGE):
        raise InvalidRequest(
            f"backlogQuotaType: {kind!r} is not known; use {DESTINATION_STORAGE} or {MESSAGE_AGE}"
        )
    return kind


def _add_properties(
    router: APIRouter, admin: BrokerAdministration, base: str, target: Target
) -> None:
    @router.get(f"{base}/properties", operation_id=f"{target.__name__}_properties")
    async def properties(request: Request) -> dict[str, str]:
        """Return all properties."""
        return await admin.policies.properties(_of(request, target))

    @router.put(
        f"{base}/properties",
        status_code=NO_CONTENT,
        openapi_extra=body("properties", PROPERTIES),
        operation_id=f"{target.__name__}_put_properties",
    )
    async def put(request: Request) -> None:
        """Add properties, or replace those of the same keys."""
        await admin.policies.edit_properties(
            _of(request, target), strings_of("properties", await object_of(request)), ()
        )

    @router.delete(
        f"{base}/properties",
        status_code=NO_CONTENT,
        operation_id=f"{target.__name__}_remove_properties",
    )
    async def remove(request: Request, key: str = "") -> None:
        """Remove one property, or all."""
        found = _of(request, target)
        await admin.policies.edit_properties(
            found, {}, (key,) if key else tuple(await admin.policies.properties(found))
        )

    if target is namespace_name:
        _add_single_properties(router, admin, base)


def _add_single_properties(router: APIRouter, admin: BrokerAdministration, base: str) -> None:
    @router.get(f"{base}/property/{{key}}")
    async def read(namespace: Namespace, key: str) -> Response:
        """Return one property of a namespace."""
        return text_answer((await admin.policies.properties(namespace)).get(key))

    @router.put(f"{base}/property/{{key}}/{{value:path}}", status_code=NO_CONTENT)
    async def write(namespace: Namespace, key: str, value: str) -> None:
        """Set one property of a namespace."""
        await admin.policies.edit_properties(namespace, {key: value}, ())

    @router.delete(f"{base}/property/{{key}}")
    async def remove(namespace: Namespace, key: str) -> Response:
        """Remove one property of a namespace, and return it."""
        found = (await admin.policies.properties(namespace)).get(key)
        await admin.policies.edit_properties(namespace, {}, (key,))
        return text_answer(found)
