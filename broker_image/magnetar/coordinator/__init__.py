"""Transaction coordinators: processes of their own, and how brokers lead clients to them.

Owns: the claim of a coordinator's number, its life, what it answers, discovery by brokers. Imports:
metadata, wire.
"""
