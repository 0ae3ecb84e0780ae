"""REST routes of a broker.

Owns: paths, bodies and statuses of Pulsar's admin API and of Magnetar's own, one module a resource.
Imports: FastAPI, `administration`, which does what a route asks for.
"""
