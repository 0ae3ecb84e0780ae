"""What broker and coordinator processes share.

Owns: settings, joining a cluster and the lease, views of the metadata store, ports and the
addresses that a process advertises, TLS, the HTTP listener. Imports: magnetar.network, metadata.
"""
