"""`python -m magnetar` is the `magnetar` command. Owns: nothing. Imports: cli."""

from magnetar.cli import main

main()
