"""Topics in service: the I/O around `magnetar.topics`.

Owns: hosts of topics and subscriptions, their producers, what becomes due in their lives, which of
them there are. Imports: topics, policies, storage.
"""
