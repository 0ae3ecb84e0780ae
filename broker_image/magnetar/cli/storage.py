"""`magnetar storage accept-loss`.

Owns: its options and what is printed. Imports: storage, lazily.
Invariant: nothing is changed without --yes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from magnetar.cli.metadata import DataDir, Storage
from magnetar.cli.session import group

storage = group("Damage of storage that cannot be repaired.")


@storage.command("accept-loss")
def accept_loss_command(
    file: Annotated[
        str, typer.Argument(help="The log file that the damage names: logs/INCARNATION/NUMBER.log.")
    ],
    volume: Storage = "",
    data_dir: DataDir = Path("data"),
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this only say what would be lost.")
    ] = False,
) -> None:
    """Let a log end where parts of it are missing or damaged for good; what is before is served
    again.

    Everything behind that place, in this file and in later ones of the same log, is lost for the
    bundles that need this file, permanently, also if the missing part is found later.
    """
    import asyncio

    from magnetar.hosting.logs import configure_logs

    configure_logs("warning")
    asyncio.run(_accept(file, volume or str(data_dir / "storage"), yes))


async def _accept(file: str, location: str, yes: bool) -> None:
    from magnetar.clock import SystemClock
    from magnetar.errors import InvalidRequest
    from magnetar.storage.log.accepted_loss import accept_loss, examine_loss
    from magnetar.storage.volumes.opening import is_directory, open_volume

    if is_directory(location) and not Path(location).is_dir():
        raise InvalidRequest(
            f"{location} is not a directory: name the brokers' with --volume, or a standalone "
            "server's with --data-dir"
        )
    opened = await open_volume(location, SystemClock())
    try:
        loss = await examine_loss(opened, file)
        print(
            f"{file}: {loss.kept} bytes are "
            f"intact{'' if loss.sealed is None else f', it had {loss.sealed}'}: {loss.reason}"
        )
        for number in loss.later:
            print(
                f"later file {number} of this log is lost as well for the bundles that need this "
                "one"
            )
        if yes:
            await accept_loss(opened, loss)
            print(f"The log ends at {loss.kept} of {file}. Brokers look again by themselves.")
        else:
            print("Nothing was changed. Restore what is missing, or run this again with --yes.")
    finally:
        await opened.close()
