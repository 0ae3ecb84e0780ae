"""Event-time watermarks (PIP-102) of topics that are served here.

Owns: the host of `magnetar.watermarks`: control records into the log, watermarks to consumers.
"""
