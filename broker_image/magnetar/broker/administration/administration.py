"""The broker's side of REST, put together.

Owns: `BrokerAdministration`, which makes every part once and hands each the parts that it works
with. Imports: the parts. Invariants: parts know each other by composition; everything but health is
refused while the broker starts or stops.
"""

from __future__ import annotations

from magnetar.broker.administration.balance import Balance
from magnetar.broker.administration.brokers import Brokers
from magnetar.broker.administration.bundles import Bundles
from magnetar.broker.administration.clusters import Clusters
from magnetar.broker.administration.documents import Documents
from magnetar.broker.administration.dynamic_settings import DynamicSettings
from magnetar.broker.administration.explain import Explanations
from magnetar.broker.administration.health import Health
from magnetar.broker.administration.load_analytics import LoadAnalyticsFacts
from magnetar.broker.administration.messages import Messages
from magnetar.broker.administration.moves import Moves
from magnetar.broker.administration.namespaces import Namespaces
from magnetar.broker.administration.operations import Operations
from magnetar.broker.administration.policies import Policies
from magnetar.broker.administration.references import References
from magnetar.broker.administration.schemas import Schemas
from magnetar.broker.administration.site import Process, Site
from magnetar.broker.administration.subscriptions import Subscriptions
from magnetar.broker.administration.tenants import Tenants
from magnetar.broker.administration.topics import Topics
from magnetar.broker.administration.transactions import TransactionFacts
from magnetar.broker.administration.watermarks import Watermarks


class BrokerAdministration:
    """Answers the routes for whichever incarnation the process runs now."""

    def __init__(self, process: Process) -> None:
        site = Site(process)
        self.health, self.clusters, self.documents = Health(site), Clusters(site), Documents(site)
        self.balance, self.load_analytics = Balance(site), LoadAnalyticsFacts(site)
        self.dynamic_settings = DynamicSettings(site, self.documents)
        self.operations, self.explanations = Operations(site), Explanations(site, self.balance)
        self.messages, self.transactions = Messages(site), TransactionFacts(site)
        self.policies, self.subscriptions, self.moves = (
            Policies(site),
            Subscriptions(site),
            Moves(site),
        )
        self.watermarks, self.schemas = Watermarks(site), Schemas(site, self.policies)
        self.topics = Topics(site, self.moves, self.subscriptions)
        self.references = References(site, self.clusters, self.documents)
        self.namespaces = Namespaces(site, self.topics, self.references)
        self.bundles = Bundles(site, self.moves, self.topics, self.subscriptions)
        self.tenants = Tenants(site, self.namespaces, self.clusters)
        self.brokers = Brokers(site, self.clusters, self.namespaces)
