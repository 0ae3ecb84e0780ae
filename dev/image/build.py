"""Building the images with buildah.

Owns: the build's arguments and the export into the OCI layout. May import: base, content,
pip_settings, workshop, dev.kube. Invariant: layers are never compressed: compressing the Spark
layer would cost more time than everything else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from dev.image import base, content, pip_settings
from dev.image.workshop import Workshop
from dev.kube.report import run_with_progress, say


def build(workshop: Workshop, checkout: Path, name: str, targets: Iterable[str]) -> None:
    """Build targets of the Dockerfile; unchanged layers come from buildah's own cache."""
    below = content.stages_below(checkout)
    for target in targets:
        stage = f"{target}-packages"
        if not workshop.has(below[stage]):
            _build(workshop, checkout, below[stage], stage)
        image = content.image_of(name, target)
        _build(workshop, checkout, image, target)
        export(workshop, image)


def _build(workshop: Workshop, checkout: Path, name: str, target: str) -> None:
    started = time.monotonic()
    arguments = [
        "--isolation=chroot",
        "--network=host",
        "--layers",
        "--force-rm",
        "--format=oci",
        f"--target={target}",
    ]
    arguments += [
        f"--tag={name}",
        f"--build-arg=BASE={base.ensure(workshop)}",
        "--pull-never",
        *_secrets(workshop),
    ]
    containerfile = checkout / "Dockerfile"
    workshop.buildah_with_progress(
        lambda _: f"building {name}", "build", *arguments, "--file", containerfile, checkout
    )
    say(f"built {name} in {time.monotonic() - started:.1f} s")


def export(workshop: Workshop, name: str) -> None:
    """Put the image into the layout; only layers it does not have yet are written."""
    started = time.monotonic()
    # buildah's own push compresses whatever its options say; skopeo does not, and skips layers
    # that are there.
    options = ("--quiet", "--dest-oci-accept-uncompressed-layers")
    target = f"oci:{workshop.layout}:{name}"
    run_with_progress(
        ["skopeo", "copy", *options, workshop.stored(name), target], lambda _: f"exporting {name}"
    )
    say(f"exported {name} in {time.monotonic() - started:.1f} s")


def _secrets(workshop: Workshop) -> list[str]:
    settings = pip_settings.machine_settings()
    bundle = pip_settings.certificate_bundle(settings)
    written = workshop.root / "pip.conf"
    written.touch(mode=0o600)
    written.write_text(pip_settings.configuration(settings, has_bundle=bundle is not None))
    secrets = [f"--secret=id=pip_conf,src={written}"]
    return [*secrets, f"--secret=id=ca_bundle,src={bundle}"] if bundle is not None else secrets
