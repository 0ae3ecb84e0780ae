"""What a broker does for its storage: the tasks around `magnetar.storage`.

Owns: periodic work on topics (expiry, retention), keeping manifests short, segment compaction,
garbage collection, copies of the metadata. Recovery of bundles is `bundles.recovery`. Imports:
storage, metadata.
"""
