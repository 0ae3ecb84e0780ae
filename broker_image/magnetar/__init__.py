"""Magnetar: Pulsar-compatible messaging whose control plane is Kubernetes.

Owns: the version. Imports: nothing.
"""

__version__ = "0.1.0"
