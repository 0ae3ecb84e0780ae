"""Load balancing in a broker.

Owns: what feeds the package `balance` and carries out what it decides: samples and reports of
load, settings and policies in force, placements, the leader's decisions. Imports: balance, the
broker's context and views.
"""
