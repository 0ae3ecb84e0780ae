"""What the Kubernetes API may answer instead of what was asked for.

Owns: the errors, made from statuses. Imports: magnetar.errors.
Invariant: the class says what to do: correct the object, try again, or give way.
"""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.errors import MagnetarError, Retry


class KubernetesError(MagnetarError):
    """The API server refused a request, or did not answer."""

    def __init__(self, message: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class ApiUnavailable(KubernetesError):
    """No answer, 429 or 5xx: the same request may succeed later."""


class ApiConflict(KubernetesError):
    """409: the object has changed or exists already; read it again."""


class ApiRefused(KubernetesError):
    """400, 403, 404 of a collection, 413, 422: the object must change first."""

    retry = Retry.NEVER


class NamespaceTerminating(ApiRefused):
    """403: the Kubernetes namespace is being deleted, and nothing can be made in it any more."""


class NotLeading(KubernetesError):
    """This process may not change anything now: another one leads, or could."""


def from_status(
    status: int, text: str, retry_after_s: float, causes: Iterable[str] = ()
) -> KubernetesError:
    """The error of one answer; `causes` are the reasons that its details name."""
    if status == 403 and "NamespaceTerminating" in causes:
        return NamespaceTerminating(text, status)
    if status == 409:
        return ApiConflict(text, status)
    if status in (408, 429) or status >= 500 or status == 401:
        return ApiUnavailable(text, status, retry_after_s)
    return ApiRefused(text, status)
