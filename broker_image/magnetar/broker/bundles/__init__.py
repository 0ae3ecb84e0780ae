"""Bundles: who serves which, and how they change hands.

Owns: ownership with its epochs, assignment, planned moves, splits, the leader's work. Imports:
balance, metadata.
"""
