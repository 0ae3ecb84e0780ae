"""How pods reach the storage that holds a cluster's messages.

Owns: the location, volumes and environment that follow from `spec.storage`, and what a secret of
credentials must hold. Imports: builders.object, names, resources. Pure. Invariants: a location
holds no credentials; they reach a process as references to a secret alone, and of their content a
template carries a keyed digest, from which nothing can be learnt.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlencode

from magnetar.resources.broker_cluster import BrokerCluster
from magnetar.resources.storage import S3Credentials
from magnetar_operator import names
from magnetar_operator.builders.object import Manifest, claim_name

VOLUME = "storage"


def location(cluster: BrokerCluster) -> str:
    """What `--volume` gets."""
    s3 = cluster.spec.storage.s3
    if s3 is None:
        return names.VOLUME_PATH
    prefix = s3.prefix or f"{cluster.namespace}/{cluster.name}"
    parameters = {
        name: value for name, value in (("endpoint", s3.endpoint), ("region", s3.region)) if value
    }
    query = f"?{urlencode(parameters, safe=':/')}" if parameters else ""
    return f"s3://{s3.bucket}/{prefix}{query}"


def storage_volumes(cluster: BrokerCluster) -> list[Manifest]:
    claim = claim_name(cluster)
    return [{"name": VOLUME, "persistentVolumeClaim": {"claimName": claim}}] if claim else []


def storage_mounts(cluster: BrokerCluster) -> list[Manifest]:
    return [{"name": VOLUME, "mountPath": names.VOLUME_PATH}] if claim_name(cluster) else []


def storage_environment(cluster: BrokerCluster) -> list[Manifest]:
    """Credentials by reference; none for a volume, or where the pod's own identity does."""
    chosen = credentials_of(cluster)
    if chosen is None:
        return []
    return [
        {
            "name": variable,
            "valueFrom": {"secretKeyRef": {"name": chosen.secret_ref.name, "key": key}},
        }
        for variable, key in _entries(chosen).items()
    ]


def credentials_of(cluster: BrokerCluster) -> S3Credentials | None:
    s3 = cluster.spec.storage.s3
    return s3.credentials if s3 is not None else None


def has_pod_identity(cluster: BrokerCluster) -> bool:
    """Whether the object store knows a pod by its service account."""
    return cluster.spec.storage.s3 is not None and credentials_of(cluster) is None


def _entries(chosen: S3Credentials) -> dict[str, str]:
    """Variable -> entry of the secret."""
    found = {
        "AWS_ACCESS_KEY_ID": chosen.access_key_id,
        "AWS_SECRET_ACCESS_KEY": chosen.secret_access_key,
    }
    return found | ({"AWS_SESSION_TOKEN": chosen.session_token} if chosen.session_token else {})


def credentials_problem(chosen: S3Credentials, secret: Manifest | None) -> str:
    """Why the secret will not do; "" if it will."""
    name, wanted = chosen.secret_ref.name, list(_entries(chosen).values())
    if secret is None:
        return f"secret {name} does not exist; make it with {' and '.join(wanted)}"
    missing = [key for key in wanted if not secret.get("data", {}).get(key)]
    return (
        f"secret {name} has no {' and no '.join(missing)}; add what is missing, or name its "
        "entries in credentials"
        if missing
        else ""
    )


def credentials_digest(cluster: BrokerCluster, chosen: S3Credentials, secret: Manifest) -> str:
    """Changes with the credentials, and reveals nothing about them."""
    content = "\n".join(secret.get("data", {}).get(key, "") for key in _entries(chosen).values())
    return hmac.new(cluster.metadata.uid.encode(), content.encode(), hashlib.sha256).hexdigest()[
        :16
    ]
