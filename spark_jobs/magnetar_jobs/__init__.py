"""Spark jobs over what brokers store.

Owns: the data source `magnetar-segments` and topic compaction; `python -m magnetar_jobs.compact` is
the entry. Imports: of magnetar only names, metadata, wire and storage formats. Nothing is imported
here, so that an executor loads only what its task needs.
"""
