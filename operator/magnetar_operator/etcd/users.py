"""Users and roles in a running etcd.

Owns: reading and changing them, and switching authentication on.
Imports: aetcd's stubs, magnetar.metadata, etcd.roles. Invariants: level-triggered: whatever state
etcd is in (new, restored from a backup, changed by hand), a call ends with the wanted users and
authentication on, or raises; when nothing has changed since the last call it asks one question and
writes nothing; every change asks first whether this process leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog
from aetcd import rpc

from magnetar.metadata.backends.etcd_channels import REQUIRE_LEADER, Channels, Member
from magnetar_operator.etcd.roles import Access, Change, Grant, plan_access

TIMEOUT_S = 10.0

log = structlog.get_logger(__name__)


class EtcdUsers:
    """One etcd's users and roles."""

    def __init__(self, channels: Channels, before_write: Callable[[], None]) -> None:
        self._channels, self._before_write = channels, before_write
        self._verified = -1
        """etcd's own count of changes to users and roles at which they were as wanted; -1 =
        never."""

    async def converge(self) -> int:
        """Make users and roles what they should be, and have etcd ask who comes; the number of
        changes.

        Raises NotLeading, StoreError, TimeoutError.
        """
        async with asyncio.timeout(TIMEOUT_S):
            status = await self._ask("AuthStatus", rpc.AuthStatusRequest())
            if status.enabled and status.authRevision == self._verified:
                return 0
            changes = plan_access(await self._read())
            for change in changes:
                self._before_write()
                await self._perform(change)
            if not status.enabled:
                self._before_write()
                await self._ask("AuthEnable", rpc.AuthEnableRequest())
                log.info("etcd.authentication_enabled")
            status = await self._ask("AuthStatus", rpc.AuthStatusRequest())
            self._verified = int(status.authRevision) if status.enabled else -1
            return len(changes)

    async def _read(self) -> Access:
        roles: dict[str, frozenset[Grant]] = {}
        for role in (await self._ask("RoleList", rpc.AuthRoleListRequest())).roles:
            found = await self._ask("RoleGet", rpc.AuthRoleGetRequest(role=role))
            roles[role] = frozenset(
                Grant(bytes(item.key), bytes(item.range_end), int(item.permType))
                for item in found.perm
            )
        users: dict[str, frozenset[str]] = {}
        for user in (await self._ask("UserList", rpc.AuthUserListRequest())).users:
            users[user] = frozenset(
                (await self._ask("UserGet", rpc.AuthUserGetRequest(name=user))).roles
            )
        return Access(roles, users)

    async def _perform(self, change: Change) -> None:
        log.info("etcd.access", what=change.what, name=change.name, role=change.role)
        grant = change.grant
        requests: dict[str, tuple[str, Any]] = {
            "add_role": ("RoleAdd", rpc.AuthRoleAddRequest(name=change.name)),
            "add_user": (
                "UserAdd",
                rpc.AuthUserAddRequest(
                    name=change.name, options=rpc.UserAddOptions(no_password=True)
                ),
            ),
            "add_user_role": (
                "UserGrantRole",
                rpc.AuthUserGrantRoleRequest(user=change.name, role=change.role),
            ),
            "remove_user_role": (
                "UserRevokeRole",
                rpc.AuthUserRevokeRoleRequest(name=change.name, role=change.role),
            ),
        }
        if grant is not None:
            permission = rpc.Permission(permType=grant.kind, key=grant.key, range_end=grant.end)
            requests["grant"] = (
                "RoleGrantPermission",
                rpc.AuthRoleGrantPermissionRequest(name=change.name, perm=permission),
            )
            requests["revoke"] = (
                "RoleRevokePermission",
                rpc.AuthRoleRevokePermissionRequest(
                    role=change.name, key=grant.key, range_end=grant.end
                ),
            )
        await self._ask(*requests[change.what])

    async def _ask(self, method: str, request: Any, stub: Any = rpc.AuthStub) -> Any:
        def invoke(member: Member, patience_s: float) -> Any:
            return getattr(stub(member.channel), method)(
                request, timeout=patience_s, metadata=REQUIRE_LEADER
            )

        return await self._channels.call(invoke, repeatable=False)
