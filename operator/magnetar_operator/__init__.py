"""The Kubernetes operator.

Owns: the reconcile loop of `BrokerCluster`, `TransactionCoordinator`, `TopicNamespace` and
`DataJob`. Imports (as a package): magnetar.names, magnetar.metadata, magnetar.clock,
magnetar.errors; never the broker's server.
"""
