"""The reconcile engine: work queue, passes, planning and applying of child objects.

Owns: the modules below; the package itself exports nothing.
"""
