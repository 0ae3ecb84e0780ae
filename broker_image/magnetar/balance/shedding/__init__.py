"""Shedding: which bundles leave their brokers.

Owns: Pulsar's five strategies, one module each, and the rules that all of them obey (`cycle`).
Imports: balance. Pure.
"""
