"""Topics in service: the I/O around `magnetar.topics`.

Owns: hosts of topics and subscriptions, their producers, their effective policies, which of them
there are. A SEND enters at `topic_host`; what becomes due by time is `upkeep.expiry`. Imports:
topics, policies, storage.
"""
