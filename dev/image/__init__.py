"""The project's container image, built and loaded without Docker and without an image registry.

Owns: the base image (debootstrap), the build (buildah), and the way an image reaches the local
node. May import: the standard library and dev.kube, because it runs before any virtual environment
exists. Invariants: an image's tag names its content; images and caches of the user's own buildah
are never touched.
"""
