"""REST routes.

Owns: what HTTP sees: paths, bodies and statuses of Pulsar's admin API and Magnetar's own. Imports:
FastAPI, names, errors, metadata; never server. The server hands in an object that satisfies
`ports.AdminPort`.
"""
