"""The broker's side of the admin API.

Owns: what each admin request does, by resource; `port` puts the parts together. Imports: metadata,
names, policies.
"""
