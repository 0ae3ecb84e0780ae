"""Bundles: their owners, transfers and recovery.

Owns: ownership with its epochs, assignment, planned moves, splits, the leader's work. Imports:
`magnetar.ownership`, metadata.
"""
