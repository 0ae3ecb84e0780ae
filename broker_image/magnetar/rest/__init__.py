"""What brokers and coordinators share of REST.

Owns: errors as answers, names and bodies of requests, the right that each route needs. Imports:
FastAPI, names, errors, security.
"""
