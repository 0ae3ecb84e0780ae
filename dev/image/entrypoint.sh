#!/bin/bash
# Entry point of the Magnetar image: a command, `magnetar` if there is none.
set -euo pipefail

if [[ $# -eq 0 ]]; then
  set -- magnetar
fi
exec "$@"
