"""The asyncio client.

Owns: what applications, the command line and the simulation's checkers talk to a cluster with.
Imports: wire, names, errors, clock, network. Every byte goes through a `Network`, every moment
through the running loop and a `Clock`, so it runs unchanged in virtual time. Map: `client` is the
entry point; `producer` and `consumer` fan out over partitions; `sending` and `receiving` serve one
partition each on top of `attachment`, which keeps them attached to whichever broker owns the topic;
`pool` and `connection` carry the bytes. `transactions` is what an application holds of a
transaction, `coordinators` talks to those who decide it; `exactly_once` is consume, transform,
produce with both. Logs go to the standard library's loggers under `magnetar.client`, which are
silent until the application gives them a handler.
"""

import logging

from magnetar.client.avro_records import AvroSchema
from magnetar.client.client import Client
from magnetar.client.consumer import Consumer, Reader
from magnetar.client.exactly_once import exactly_once
from magnetar.client.failures import (
    AlreadyClosed,
    BrokerRefused,
    ConnectionLost,
    SendTimeout,
    TransactionAborted,
    TransactionOutcomeUnknown,
    Undecodable,
)
from magnetar.client.messages import EARLIEST, LATEST, Message, MessageId
from magnetar.client.outgoing import Batching, Compression
from magnetar.client.producer import KeyHash, Producer, Routing
from magnetar.client.redelivery import DeadLetterPolicy, RedeliveryBackoff
from magnetar.client.schemas import STRING, JsonSchema, Schema, StringSchema
from magnetar.client.subscription_options import InitialPosition, SubscriptionType
from magnetar.client.table_view import TableView
from magnetar.client.transactions import Transaction, TransactionState
from magnetar.watermarks.generator import Reset, Watermark

__all__ = [
    "EARLIEST",
    "LATEST",
    "STRING",
    "AlreadyClosed",
    "AvroSchema",
    "Batching",
    "BrokerRefused",
    "Client",
    "Compression",
    "ConnectionLost",
    "Consumer",
    "DeadLetterPolicy",
    "InitialPosition",
    "JsonSchema",
    "KeyHash",
    "Message",
    "MessageId",
    "Producer",
    "Reader",
    "RedeliveryBackoff",
    "Reset",
    "Routing",
    "Schema",
    "SendTimeout",
    "StringSchema",
    "SubscriptionType",
    "TableView",
    "Transaction",
    "TransactionAborted",
    "TransactionOutcomeUnknown",
    "TransactionState",
    "Undecodable",
    "Watermark",
    "exactly_once",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
