"""Command line of the image build: `python3 -m dev.image <verb>`.

Owns: verbs, arguments, exit codes (0 done, 1 failed, 2 usage). May import: everything else in this
package, dev.kube. Invariant: standard output carries the image's name and nothing else, so
`IMAGE=$(python3 -m dev.image build)` works.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dev.image import archive, build, content, deliver
from dev.image.workshop import Workshop
from dev.kube import cluster, containers, packages
from dev.kube.paths import CHECKOUT, Paths
from dev.kube.report import CommandFailed, exit_code, say


def build_image(arguments: argparse.Namespace, paths: Paths) -> int:
    name = arguments.tag or content.default_name(arguments.source)
    _require_fixed_tag(name)
    _require_root()
    packages.install()
    workshop = Workshop.below(paths)
    targets = arguments.target or list(content.TARGETS)
    images = [content.image_of(name, target) for target in targets]
    with workshop.exclusive():
        is_ours = name == content.default_name(arguments.source) and not arguments.force
        current = {image for image in images if is_ours and _is_exported(workshop, image)}
        missing = [
            target for target, image in zip(targets, images, strict=True) if image not in current
        ]
        if missing:
            build.build(workshop, arguments.source, name, missing)
        else:
            say(f"{', '.join(images)}: built already")
        for image in images:
            if arguments.load and not (image in current and deliver.is_loaded(paths, image)):
                deliver.load(workshop, paths, image)
        if arguments.archive:
            deliver.save(workshop, images, arguments.archive)
    if arguments.tag:
        say(
            "push them with:\n"
            + "\n".join(
                f"  skopeo copy oci:{workshop.layout}:{image} docker://{image}" for image in images
            )
        )
    print(name)
    return 0


def print_tag(arguments: argparse.Namespace, _: Paths) -> int:
    print(content.default_name(arguments.source))
    return 0


def etcd_image(arguments: argparse.Namespace, paths: Paths) -> int:
    workshop = Workshop.below(paths)
    with workshop.exclusive():
        destination: Path = arguments.archive or workshop.root / "etcd.tar"
        deliver.write_etcd_image(paths, destination)
        if arguments.load and not deliver.is_loaded(paths, deliver.ETCD_IMAGE):
            containers.load(paths, destination)
    print(deliver.ETCD_IMAGE)
    return 0


def prune_images(arguments: argparse.Namespace, paths: Paths) -> int:
    workshop = Workshop.below(paths)
    with workshop.exclusive():
        current = content.default_name(arguments.source)
        # Files may have changed since the last build; without one, the newest is worth keeping.
        newest = [
            "",
            *(
                name
                for name in archive.names_in(workshop.layout)
                if name.startswith(f"{content.REPOSITORY}:")
            ),
        ][-1]
        built = current if _is_exported(workshop, current) else newest
        kept = content.images_of(built) if built else []
        deliver.prune(workshop, paths, {*kept, *content.stages_below(arguments.source).values()})
    return 0


def _require_root() -> None:
    if os.geteuid() != 0:
        raise CommandFailed(
            "building without Docker needs root; otherwise: docker build -t REPO/magnetar:TAG ."
        )


def _require_fixed_tag(name: str) -> None:
    """A node pulls `latest` again each time, and without a registry it cannot."""
    _, colon, tag = name.rpartition(":")
    if not colon or "/" in tag or tag == "latest":
        raise SystemExit(f"{name}: give it a tag other than latest")


def _is_exported(workshop: Workshop, name: str) -> bool:
    try:
        archive.manifest_of(workshop.layout, name)
    except archive.NotInLayout:
        return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m dev.image", description=(__doc__ or "").splitlines()[0]
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
    make = verbs.add_parser(
        "build", help="build the images of this checkout, print the brokers' name"
    )
    make.add_argument(
        "--tag",
        help="full name of the brokers' image; by default localhost/magnetar:<content hash>",
    )
    make.add_argument(
        "--target",
        action="append",
        choices=list(content.TARGETS),
        help="only this image (may be repeated)",
    )
    make.add_argument(
        "--force", action="store_true", help="build although this content has been built"
    )
    make.set_defaults(run=build_image)
    tag = verbs.add_parser("tag", help="print the name this checkout's content gets")
    tag.set_defaults(run=print_tag)
    prune = verbs.add_parser("prune", help="remove builds of earlier content that no pod uses")
    prune.set_defaults(run=prune_images)
    for verb in (make, tag, prune):
        verb.add_argument("--source", type=Path, default=CHECKOUT, help="the checkout to build")
    etcd = verbs.add_parser("etcd", help="make an image of etcd and etcdctl, print its name")
    etcd.set_defaults(run=etcd_image)
    for verb in (make, etcd):
        verb.add_argument(
            "--load", action="store_true", help="import what is made into the local cluster"
        )
        verb.add_argument("--archive", type=Path, help="also write an OCI archive to this file")
    return parser


def main() -> int:
    os.umask(0o077)
    arguments = _parser().parse_args()
    return exit_code(
        lambda: int(arguments.run(arguments, Paths.from_environment())),
        (CommandFailed, archive.NotInLayout, cluster.NotReady),
    )


if __name__ == "__main__":
    sys.exit(main())
