"""Schemas of topics.

Owns: types, versions, definitions and what fits what, by Pulsar's rules. Imports: errors; `avro`
only where definitions are compared. Pure.
"""
