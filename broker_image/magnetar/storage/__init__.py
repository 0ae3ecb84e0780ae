"""Durable storage: the log, the claim fence, seals, level-0 indexes, segments, manifests,
checkpoints.

Owns: every byte that Magnetar keeps outside the metadata store. Imports: errors, clock, names,
metadata records; asyncio, os and threads only in `posix` and `worker`. Invariants: all formats are
versioned, little-endian and checked by CRC-32C; a format that was released is never edited, only
succeeded.
"""
