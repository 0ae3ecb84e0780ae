"""Event-time watermarks (PIP-102): what producers assert, per subscription position.

Owns: control records and their bytes, a topic's timeline of them, the generator of a subscription,
the idle policy, and the minimum over topics. Imports: errors, transactions.ids. Pure: events in,
effects out; time is an input. Brokers host it in `broker/watermarks`, clients in `client/watermarks`.
"""
