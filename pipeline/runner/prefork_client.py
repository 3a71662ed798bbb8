"""The process Beam takes for its worker: it asks the helper for one and waits for its end.

In:  the helper's socket as argument, the worker's settings in the environment.
Out: the worker's exit code.

Run as a plain file without site packages, so that it starts in a few milliseconds.
"""

import os
import socket
import sys
from collections.abc import Mapping

END = b"\0\0"


def send_environment(connection: socket.socket, environment: Mapping[bytes, bytes]) -> None:
    """Send `environment` as NUL-separated `name=value`, which neither can contain."""
    connection.sendall(b"\0".join(b"%b=%b" % item for item in environment.items()) + END)


def receive_environment(connection: socket.socket) -> dict[str, str]:
    """What `send_environment` sent."""
    received = b""
    while not received.endswith(END):
        received += connection.recv(1 << 16)
    pairs = (pair.partition(b"=") for pair in received.removesuffix(END).split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def main() -> int:
    """Stand for one worker."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    send_environment(connection, os.environb)
    code = connection.recv(1)
    return code[0] if code else 1


if __name__ == "__main__":
    sys.exit(main())
