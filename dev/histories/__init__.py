"""What clients of transactions did, which answers they got, and every contradiction in it.

Owns: nothing itself: `transactions` records (pure), `anomalies` judges (pure). Used by the
simulation, the soak and the tests with real clients.
"""
