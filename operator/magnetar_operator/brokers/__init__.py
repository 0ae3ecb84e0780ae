"""Reconciling a `BrokerCluster`.

Owns: the modules below; the package itself exports nothing.
"""
