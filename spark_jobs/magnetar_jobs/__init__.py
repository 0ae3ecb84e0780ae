"""Spark jobs over what brokers store.

Owns: the data source `magnetar`, topics as DataFrames; `magnetar-segments`, topic compaction and the
frame of users' scripts, whose entries are `python -m magnetar_jobs.compact` and
`magnetar_jobs.script`. Imports: of magnetar only names, metadata, wire and storage formats, and its
client to publish. Nothing is imported here, so that an executor loads only
what its task needs.
"""
