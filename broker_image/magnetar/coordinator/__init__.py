"""Transaction coordinators: processes of their own, and how clients find them.

Owns: the claim of a coordinator's number, an incarnation of its process, what it answers, discovery
by brokers. Imports: metadata, wire.
"""
