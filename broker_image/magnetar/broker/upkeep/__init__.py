"""What a broker does for its storage: the tasks around `magnetar.storage`.

Owns: where entries lie, recovery of bundles, keeping recovery and manifests short, rewriting,
collection, copies of the metadata. Imports: storage, metadata.
"""
