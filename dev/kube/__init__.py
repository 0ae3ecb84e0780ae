"""A real one-node Kubernetes on the developer's own machine, without Docker and without an image
registry.

Owns: building the Kubernetes programs, booting and stopping the node, its volumes and its images.
May import: the standard library only, because it runs before any virtual environment exists.
Invariants: nothing outside the state directory survives `down`; only processes it started are ever
stopped; with an existing cluster (`CONTEXT` or `--context`) it starts nothing.
"""
