"""The Pulsar binary protocol without any input or output.

Owns: frames, commands, entries, batches and checksums: bytes in, values out, and back. Imports:
errors, protobuf, crc32c. Pure. Map: `frames` cuts a byte stream, `commands` builds and reads
commands one by one, `runs` does so for many at once on the hot path, `entries` reads and writes
what SEND carries, `checksum` is CRC-32C, `pulsar_api.proto` holds every field number.
"""
