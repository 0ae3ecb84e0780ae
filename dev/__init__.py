"""Tools of the project: local Kubernetes, image, benchmarks, campaigns, the tiers of tests.

Owns: what developers and CI run; nothing here is shipped. Imports: the standard library first; the
packages only where a tool measures them.
"""
