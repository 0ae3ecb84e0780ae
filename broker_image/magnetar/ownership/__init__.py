"""Ownership: the pure rules of which broker serves a bundle.

Owns: transitions of bundle records and the choice of an owner. Imports: errors, metadata.records.
Pure.
"""
