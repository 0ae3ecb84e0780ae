"""What each admin request does, by resource.

Owns: one class a resource; `administration` composes them. Imports: metadata, names, policies.
"""
