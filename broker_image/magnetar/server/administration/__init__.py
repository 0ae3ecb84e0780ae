"""The broker's side of the admin API.

Owns: what each admin request does, by resource; `server.admin_port` puts the parts together. Imports: metadata, names, policies, server siblings.
"""
