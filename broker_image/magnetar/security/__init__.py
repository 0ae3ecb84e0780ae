"""Who clients are, and what they may do.

Owns: the document that says how (`document`), keys (`keys`, `signatures`), tokens (`tokens`),
decisions about rights (`authorization`). Imports: names, errors. Invariants: nothing here reads a
file, a clock or chance; what is not granted is refused; no key, token or signature is part of a
message.
"""
