"""Pure builders of child objects, one module per kind.

Owns: what the operator wants to exist. Imports (as a package): models, names. No I/O, no clock, no
settings but those passed in. Invariant: the same arguments give the same manifest, so planning
against what was just applied yields nothing.
"""
