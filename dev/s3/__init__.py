"""A real HTTP server that speaks S3, for tests and measurements.

Owns: its program, its virtual environment and its process. Imports: the standard library; moto in
the program alone.
"""
