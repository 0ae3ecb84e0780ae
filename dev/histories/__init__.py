"""What clients of transactions did and were told, and every contradiction in it.

Owns: nothing itself: `transactions` records (pure), `anomalies` judges (pure). Used by the
simulation, the soak and the tests with real clients.
"""
