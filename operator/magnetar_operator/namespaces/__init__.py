"""Reconciling a `TopicNamespace`.

Owns: the modules below; the package itself exports nothing.
"""
