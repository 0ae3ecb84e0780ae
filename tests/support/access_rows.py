"""Who may have each route and each command answered.

Owns: `ROUTE_ROWS` and `COORDINATOR_ROWS`, a row for every route; `COMMAND_ROWS`, one for every
command. Imports: the rights. Invariant: all of it is written out by hand, and nothing is derived
from the server's own tables.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.security.authorization import Right

NAMESPACE, TOPIC = (
    "/admin/v2/namespaces/{tenant}/{namespace}",
    "/admin/v2/{domain}/{tenant}/{namespace}/{topic}",
)


class RouteRow(NamedTuple):
    """What one route needs; `refused` is the status for a known role that has not got it."""

    right: Right
    refused: int


_ROWS: dict[tuple[Right, int], str] = {
    (Right.OPEN, 200): """
        GET /live
        GET /ready
        GET /status.html
        GET /metrics/
        GET /metrics
        GET /admin/v2/brokers/ready
        GET /admin/v2/brokers/version
        GET /docs
        GET /openapi.json
    """,
    (Right.ANYBODY, 401): """
        GET /admin/v2/clusters
        DELETE,GET,POST,PUT /admin/v3/functions
        DELETE,GET,POST,PUT /admin/v3/functions/{rest}
        DELETE,GET,POST,PUT /admin/v3/function
        DELETE,GET,POST,PUT /admin/v3/function/{rest}
        DELETE,GET,POST,PUT /admin/v3/sinks
        DELETE,GET,POST,PUT /admin/v3/sinks/{rest}
        DELETE,GET,POST,PUT /admin/v3/sink
        DELETE,GET,POST,PUT /admin/v3/sink/{rest}
        DELETE,GET,POST,PUT /admin/v3/sources
        DELETE,GET,POST,PUT /admin/v3/sources/{rest}
        DELETE,GET,POST,PUT /admin/v3/source
        DELETE,GET,POST,PUT /admin/v3/source/{rest}
        DELETE,GET,POST,PUT /admin/v3/packages
        DELETE,GET,POST,PUT /admin/v3/packages/{rest}
        DELETE,GET,POST,PUT /admin/v2/worker/{rest}
        DELETE,GET,POST,PUT /admin/v2/worker-stats/{rest}
    """,
    (Right.SUPER, 403): """
        GET /magnetar/v1/status
        GET /magnetar/v1/damage
        DELETE,PUT /magnetar/v1/brokers/{broker}/cordon
        GET /magnetar/v1/namespaces/owners
        GET /magnetar/v1/explain
        GET /magnetar/v1/explain/owned
        GET /magnetar/v1/balance
        GET /magnetar/v1/balance/history
        GET /magnetar/v1/balance/decisions/{decision}
        GET /magnetar/v1/balance/plan
        GET /magnetar/v1/load-analytics
        GET /magnetar/v1/load-analytics/reports
        GET /magnetar/v1/load-analytics/reports/{report}
        GET /magnetar/v1/transactions
        POST /magnetar/v1/transactions/abort
        GET /magnetar/v1/transactions/{most}/{least}
        POST /internal/v1/store/get
        POST /internal/v1/store/range
        POST /internal/v1/store/transact
    """,
    (Right.SUPER, 401): """
        GET /admin/v3/transactions/coordinators
        GET /admin/v3/transactions/coordinatorStats
        GET /admin/v3/transactions/coordinatorInternalStats/{tcid}
        POST /admin/v3/transactions/transactionCoordinator/replicas
        GET /admin/v3/transactions/transactionMetadata/{most}/{least}
        GET /admin/v3/transactions/slowTransactions/{timeout}
        POST /admin/v3/transactions/abortTransaction/{most}/{least}
        GET /admin/v2/brokers/health
        GET /admin/v2/brokers/leaderBroker
        GET /admin/v2/brokers/backlog-quota-check
        GET /admin/v2/brokers/configuration
        GET /admin/v2/brokers/configuration/values
        GET /admin/v2/brokers/configuration/runtime
        POST /admin/v2/brokers/configuration/{name}/{value}
        DELETE /admin/v2/brokers/configuration/{name}
        GET /admin/v2/brokers/internal-configuration
        GET /admin/v2/brokers/{cluster}
        GET /admin/v2/brokers
        GET /admin/v2/brokers/{cluster}/{broker}/ownedNamespaces
        GET /admin/v2/broker-stats/metrics
        GET /admin/v2/broker-stats/mbeans
        GET /admin/v2/broker-stats/destinations
        GET /admin/v2/broker-stats/topics
        GET /admin/v2/broker-stats/load-report
        GET /admin/v2/broker-stats/allocator-stats/{allocator}
        GET,POST /admin/v2/clusters/{cluster}/peers
        GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers
        GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/brokers/{broker}
        GET /admin/v2/clusters/{cluster}/migrate
        GET /admin/v2/clusters/{cluster}/failureDomains
        DELETE,GET,POST /admin/v2/clusters/{cluster}/failureDomains/{name}
        GET /admin/v2/clusters/{cluster}/namespaceIsolationPolicies
        DELETE,GET,POST /admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{name}
        GET /admin/v2/resourcegroups
        DELETE,GET,PUT /admin/v2/resourcegroups/{name}
        GET,POST /admin/v2/resource-quotas
        DELETE,GET,POST /admin/v2/resource-quotas/{tenant}/{namespace}/{bundle}
        GET /admin/v2/bookies/all
        GET /admin/v2/bookies/racks-info
        DELETE,GET,POST,PUT /admin/v2/clusters/{cluster}
        GET /admin/v2/tenants
        DELETE,POST,PUT /admin/v2/tenants/{tenant}
        GET /admin/v2/namespaces/{cluster}/antiAffinity/{group}
        GET /admin/namespaces/{cluster}/antiAffinity/{group}
    """,
    (Right.ADMINISTER, 401): """
        GET /admin/v2/tenants/{tenant}
        GET /admin/v2/namespaces/{tenant}
        DELETE,PUT N
        DELETE,POST,PUT /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema
        POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/compatibility
        PUT N/unload
        PUT N/{bundle}/unload
        PUT N/{bundle}/split
        GET T/ledger/{ledger}/entry/{entry}
        POST T/all_subscription/expireMessages/{seconds}
        PUT T/unload
        POST T/roll
        POST T/terminate
        POST T/terminate/partitions
        POST T/trim
        DELETE T/truncate
        POST T/createMissedPartitions
        GET T/internal-info
        GET,PUT T/compaction
        GET T/permissions
        DELETE,POST T/permissions/{role}
        DELETE,GET,PUT T/properties
        GET,PUT T/offload
        DELETE,GET,POST,PUT T/shadowTopics
    """,
    (Right.ADMINISTER, 403): """
        PATCH /magnetar/v1/namespaces/{tenant}/{namespace}/policies
        DELETE,GET /magnetar/v1/namespaces/{tenant}/{namespace}/owner
        DELETE,PUT /magnetar/v1/namespaces/{tenant}/{namespace}/{bundle}/pin
        PUT /magnetar/v1/namespaces/{tenant}/{namespace}/{bundle}/merge
        GET N
        GET N/bundles
        GET N/{bundle}/topicHashPositions
        POST N/clearBacklog
        POST N/{bundle}/clearBacklog
        GET N/permissions
        DELETE,POST N/permissions/{role}
        GET N/permissions/subscription
        POST N/permissions/subscription/{subscription}
        DELETE N/permissions/{subscription}/{role}
        DELETE,GET,POST,PUT N/{policy}
        DELETE N/removeOffloadPolicies
        POST N/resourcegroup/{group}
        GET N/backlogQuotaMap
        DELETE,POST N/backlogQuota
        DELETE,GET,PUT N/properties
        DELETE,GET N/property/{key}
        PUT N/property/{key}/{value}
        DELETE,PUT T
        DELETE,POST,PUT T/partitions
        DELETE,GET,POST,PUT T/{policy}
        DELETE T/policies
        GET T/backlogQuotaMap
        DELETE,POST T/backlogQuota
    """,
    (Right.USE, 401): """
        GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}/bundle
        GET /lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}
        GET /admin/v3/transactions/transactionBufferStats/{tenant}/{namespace}/{topic}
        GET /admin/v3/transactions/transactionInBufferStats/{tenant}/{namespace}/{topic}/{most}/{least}
        GET /admin/v3/transactions/transactionBufferInternalStats/{tenant}/{namespace}/{topic}
        GET T/partitions
        GET T/stats
        GET T/internalStats
        GET T/partitioned-stats
        GET T/partitioned-internalStats
        GET T/lastMessageId
        GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema/{version}
        GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema
        GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/schemas
        POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/version
        GET /admin/v2/schemas/{tenant}/{namespace}/{topic}/metadata
    """,
    (Right.USE, 403): """
        GET /magnetar/v1/watermarks/{tenant}/{namespace}/{topic}
        GET N/topics
        GET /admin/v2/{domain}/{tenant}/{namespace}
        GET /admin/v2/{domain}/{tenant}/{namespace}/partitioned
    """,
    (Right.CONSUME, 401): """
        GET /admin/v3/transactions/pendingAckStats/{tenant}/{namespace}/{topic}/{subscription}
        GET /admin/v3/transactions/transactionInPendingAckStats/{tenant}/{namespace}/{topic}/{subscription}/{most}/{least}
        GET /admin/v3/transactions/positionStatsInPendingAck/{tenant}/{namespace}/{topic}/{subscription}/{ledger}/{entry}
        GET /admin/v3/transactions/pendingAckInternalStats/{tenant}/{namespace}/{topic}/{subscription}
        GET T/examinemessage
        GET T/messageid/{timestamp}
        PUT T/backlogSize
        GET T/subscriptions
        DELETE,PUT T/subscription/{subscription}
        GET T/subscription/{subscription}/position/{number}
        POST T/subscription/{subscription}/analyzeBacklog
        GET,PUT T/subscription/{subscription}/properties
        GET T/subscription/{subscription}/watermark
        POST T/subscription/{subscription}/resetcursor/{timestamp}
        POST T/subscription/{subscription}/resetcursor
        POST T/subscription/{subscription}/skip/{count}
        POST T/subscription/{subscription}/skip_all
        POST T/subscription/{subscription}/expireMessages/{seconds}
        POST T/subscription/{subscription}/expireMessages
        DELETE,GET,POST,PUT T/replicatedSubscriptionStatus
        DELETE,GET,POST,PUT T/subscription/{subscription}/replicatedSubscriptionStatus
    """,
    (Right.CONSUME, 403): """
        POST N/clearBacklog/{subscription}
        POST N/{bundle}/clearBacklog/{subscription}
        POST N/unsubscribe/{subscription}
        POST N/{bundle}/unsubscribe/{subscription}
    """,
}


def _spelled_out(path: str) -> str:
    root, slash, rest = path.partition("/")
    return {"N": NAMESPACE, "T": TOPIC, "": ""}[root] + slash + rest


def _by_route(rows: dict[tuple[Right, int], str]) -> dict[tuple[str, str], RouteRow]:
    return {
        (method, _spelled_out(path)): RouteRow(*row)
        for row, lines in rows.items()
        for methods, path in (line.split() for line in lines.strip().splitlines())
        for method in methods.split(",")
    }


ROUTE_ROWS = _by_route(_ROWS)
COORDINATOR_ROWS = _by_route(
    {
        (Right.OPEN, 200): """
            GET /live
            GET /ready
            GET /metrics
            GET,HEAD /openapi.json
        """,
        (Right.SUPER, 403): """
            GET /internal/v1/coordinator/{tcid}
            GET /internal/v1/coordinator/{tcid}/transactions
            GET /internal/v1/coordinator/{tcid}/transactions/{least}
            POST /internal/v1/coordinator/{tcid}/transactions/{least}/abort
            POST /internal/v1/coordinator/{tcid}/abort
        """,
    }
)
"""Of a transaction coordinator's own process."""


class CommandRow(NamedTuple):
    """What one command of the binary protocol needs, and how it is answered: the field of the
    answer, an error's name, "closed" or "silent".

    `owned`: what the sender makes before, if it may: the command acts on that and needs no further
    right.
    """

    right: Right
    granted: str
    refused: str
    owned: str = ""


COMMAND_ROWS: dict[str, CommandRow] = {
    # of the connection itself
    "CONNECT": CommandRow(Right.ANYBODY, "closed", "closed"),
    "AUTH_RESPONSE": CommandRow(Right.ANYBODY, "silent", "closed"),
    "PING": CommandRow(Right.ANYBODY, "silent", "silent"),
    "PONG": CommandRow(Right.ANYBODY, "silent", "silent"),
    # on a topic or namespace that is named
    "LOOKUP": CommandRow(Right.USE, "lookup_response", "AuthorizationError"),
    "PARTITIONED_METADATA": CommandRow(
        Right.USE, "partitioned_metadata_response", "AuthorizationError"
    ),
    "GET_TOPICS_OF_NAMESPACE": CommandRow(
        Right.USE, "get_topics_of_namespace_response", "AuthorizationError"
    ),
    "WATCH_TOPIC_LIST": CommandRow(Right.USE, "watch_topic_list_success", "AuthorizationError"),
    "GET_SCHEMA": CommandRow(Right.USE, "TopicNotFound", "AuthorizationError"),
    "GET_OR_CREATE_SCHEMA": CommandRow(
        Right.USE, "get_or_create_schema_response", "AuthorizationError"
    ),
    "PRODUCER": CommandRow(Right.PRODUCE, "producer_success", "AuthorizationError"),
    "SUBSCRIBE": CommandRow(Right.CONSUME, "success", "AuthorizationError"),
    # on a producer, consumer or watcher of the connection
    "SEND": CommandRow(Right.PRODUCE, "send_receipt", "closed", "producer"),
    "CLOSE_PRODUCER": CommandRow(Right.PRODUCE, "success", "success", "producer"),
    "FLOW": CommandRow(Right.CONSUME, "message", "silent", "consumer"),
    "ACK": CommandRow(Right.CONSUME, "ack_response", "ConsumerNotFound", "consumer"),
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": CommandRow(Right.CONSUME, "silent", "silent", "consumer"),
    "CONSUMER_STATS": CommandRow(
        Right.CONSUME, "consumer_stats_response", "ConsumerNotFound", "consumer"
    ),
    "GET_LAST_MESSAGE_ID": CommandRow(
        Right.CONSUME, "get_last_message_id_response", "MetadataError", "consumer"
    ),
    "GET_LAST_WATERMARK": CommandRow(
        Right.CONSUME, "get_last_watermark_response", "MetadataError", "consumer"
    ),
    "SET_WATERMARK": CommandRow(Right.PRODUCE, "success", "ServiceNotReady", "producer"),
    "SEEK": CommandRow(Right.CONSUME, "success", "MetadataError", "consumer"),
    "UNSUBSCRIBE": CommandRow(Right.CONSUME, "success", "MetadataError", "consumer"),
    "CLOSE_CONSUMER": CommandRow(Right.CONSUME, "success", "success", "consumer"),
    "WATCH_TOPIC_LIST_CLOSE": CommandRow(Right.USE, "success", "success", "watcher"),
    # transactions; who may begin none tries that of the super user
    "TC_CLIENT_CONNECT_REQUEST": CommandRow(Right.ANYBODY, "tc_client_connect_response", "closed"),
    "NEW_TXN": CommandRow(Right.USE, "new_txn_response", "AuthorizationError"),
    "ADD_PARTITION_TO_TXN": CommandRow(
        Right.PRODUCE, "add_partition_to_txn_response", "AuthorizationError", "transaction"
    ),
    "ADD_SUBSCRIPTION_TO_TXN": CommandRow(
        Right.CONSUME, "add_subscription_to_txn_response", "AuthorizationError", "transaction"
    ),
    "END_TXN": CommandRow(Right.USE, "end_txn_response", "NotAllowedError", "transaction"),
    "END_TXN_ON_PARTITION": CommandRow(
        Right.SUPER, "end_txn_on_partition_response", "AuthorizationError"
    ),
    "END_TXN_ON_SUBSCRIPTION": CommandRow(
        Right.SUPER, "end_txn_on_subscription_response", "AuthorizationError", "consumer"
    ),
    # what only a server sends
    **{
        name: CommandRow(Right.ANYBODY, "closed", "closed")
        for name in (
            "ACK_RESPONSE",
            "ACTIVE_CONSUMER_CHANGE",
            "ADD_PARTITION_TO_TXN_RESPONSE",
            "ADD_SUBSCRIPTION_TO_TXN_RESPONSE",
            "AUTH_CHALLENGE",
            "CONNECTED",
            "CONSUMER_STATS_RESPONSE",
            "END_TXN_ON_PARTITION_RESPONSE",
            "END_TXN_ON_SUBSCRIPTION_RESPONSE",
            "END_TXN_RESPONSE",
            "ERROR",
            "GET_LAST_MESSAGE_ID_RESPONSE",
            "GET_LAST_WATERMARK_RESPONSE",
            "GET_OR_CREATE_SCHEMA_RESPONSE",
            "GET_SCHEMA_RESPONSE",
            "GET_TOPICS_OF_NAMESPACE_RESPONSE",
            "LOOKUP_RESPONSE",
            "MESSAGE",
            "NEW_TXN_RESPONSE",
            "PARTITIONED_METADATA_RESPONSE",
            "PRODUCER_SUCCESS",
            "REACHED_END_OF_TOPIC",
            "SEND_ERROR",
            "SEND_RECEIPT",
            "SUCCESS",
            "TC_CLIENT_CONNECT_RESPONSE",
            "TOPIC_MIGRATED",
            "WATCH_TOPIC_LIST_SUCCESS",
            "WATCH_TOPIC_UPDATE",
            "WATERMARK",
        )
    },
}
