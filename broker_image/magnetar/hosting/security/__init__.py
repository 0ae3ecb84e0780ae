"""What a process does with `magnetar.security`.

Owns: reading documents and keys and following their changes (`source`), who a peer is
(`authentication`, `handshakes`), what it may do on the binary protocol (`guard`) and by REST
(`rest`). Imports: magnetar.security, wire. Invariant: nothing of this is imported by a process that
was started without `--security`.
"""
