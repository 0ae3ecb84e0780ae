"""Whether an etcd pod may start on what its volume holds.

Owns: the decision, which an init container takes before every start of a pod (`python3 -m
magnetar_operator.etcd.start DIRECTORY`). Imports: the standard library. Invariants: a volume
without data starts only in the pod that the operator expects to join or to begin a cluster: a
member that has forgotten what it voted for never comes back under its old id, and a second cluster
is never begun beside the first; data of a member that was removed is set aside before its pod joins
again, and deleted at the start after that.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

OPEN, MEMBER, POD_NAME = "MAGNETAR_ETCD_OPEN", "MAGNETAR_ETCD_MEMBER", "POD_NAME"
"""Variables: which pod may start without data (empty = none), the member id it joins as (empty =
it begins a cluster), this pod."""
EMPTY = "NoData"
"""First word of the refusal; the operator reads it in the pod's status."""
DATA, MARKER, SET_ASIDE = "data", "joined-as", "set-aside"
TERMINATION_LOG = Path("/dev/termination-log")


class StartRefused(Exception):
    """This pod may not start etcd now."""


def prepare(directory: Path, environment: Mapping[str, str]) -> str:
    """Make `directory` ready for etcd; what was done. Raises StartRefused with a sentence for
    the pod's status, OSError."""
    data, marker = directory / DATA, directory / MARKER
    expected = environment.get(OPEN, "") == environment[POD_NAME]
    member = environment.get(MEMBER, "") if expected else ""
    joined_as = marker.read_text().strip() if marker.exists() else ""
    if member and joined_as != member:
        return _join(directory, member)
    if holds_data(data):
        if joined_as == member or not member:
            shutil.rmtree(directory / SET_ASIDE, ignore_errors=True)
        return "starts on its data"
    if not expected:
        raise StartRefused(
            f"{EMPTY}: the volume holds no data of an etcd member; the operator replaces the "
            "member if the others can bear it"
        )
    return f"joins as member {member}" if member else "begins a cluster"


def holds_data(data: Path) -> bool:
    """Whether etcd would find a log there: it makes the directory whole and renames it into
    place."""
    log = data / "member" / "wal"
    return log.is_dir() and any(log.iterdir())


def _join(directory: Path, member: str) -> str:
    """Clear the way for a new member: what an earlier one left would make etcd refuse, or be
    that one."""
    data, old = directory / DATA, directory / SET_ASIDE
    set_aside = data.exists()
    if set_aside:
        shutil.rmtree(old, ignore_errors=True)
        data.rename(old)
    draft = directory / f"{MARKER}.draft"
    with draft.open("w") as output:
        output.write(member)
        output.flush()
        os.fsync(output.fileno())
    draft.replace(directory / MARKER)
    return f"joins as member {member}" + (
        "; the removed member's data is set aside" if set_aside else ""
    )


def main() -> int:
    """Exit code 1 if the pod may not start."""
    try:
        print(prepare(Path(sys.argv[1]), os.environ), flush=True)
    except (StartRefused, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        TERMINATION_LOG.write_text(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
