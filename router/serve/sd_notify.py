"""The server's state for a service manager: systemd's sd_notify(3), over a unix socket."""

from __future__ import annotations

import os
import socket
import sys

READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str) -> bool:
    """Send `state` to the socket that NOTIFY_SOCKET names; returns whether it was sent. A failure
    is printed on standard error."""
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
        print(f"{state} could not be sent to the service manager: {error}", file=sys.stderr)
        return False
    return True
