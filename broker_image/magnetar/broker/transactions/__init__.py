"""This broker as a participant of transactions.

Owns: what topics and subscriptions do when they are used with any; one that never is has none of
this. Imports: transactions.
"""
