"""Telling a service manager how the server is: systemd's sd_notify(3), over a unix socket."""

from __future__ import annotations

import os
import socket
import sys

READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str) -> bool:
    """Send `state` where NOTIFY_SOCKET names a socket; whether it was sent. A failure is told on
    standard error and reaches nobody else."""
    place = os.environ.get("NOTIFY_SOCKET")
    if not place:
        return False
    if place.startswith("@"):  # an abstract socket
        place = "\0" + place[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as own:
            own.connect(place)
            own.sendall(state.encode())
    except OSError as error:
        print(f"the service manager could not be told {state}: {error}", file=sys.stderr)
        return False
    return True
