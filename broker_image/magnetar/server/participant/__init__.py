"""This broker as a participant of transactions: what topics and subscriptions do when they are used with any.

A topic that never is has none of this.
"""
