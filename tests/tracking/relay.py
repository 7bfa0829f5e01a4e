"""A relay before a server, which notes the process behind each connection."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self


class Relay:
    """Listens on loopback and passes everything on to another port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.processes: set[int | None] = set()
        """Who has asked something so far."""
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, (_, port) = self._listener.accept()
                self._start(self._serve, client, port)

    def _serve(self, client: socket.socket, port: int) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            self._ends += [client, server]
            # Who only looks whether somebody is here sends nothing, and is gone before it can be asked.
            if data := client.recv(1 << 16):
                self.processes.add(_owner(port, self.port))
                server.sendall(data)
                back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                back.start()
                _pass_on(client, server)
                back.join()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _owner(port: int, peer: int) -> int | None:
    """The process that holds the connection from one port of this machine to another."""
    ends = (f"0100007F:{port:04X}", f"0100007F:{peer:04X}")
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if (row[1], row[2]) == ends}
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(handle) in sockets:
                return int(handle.parts[2])
    return None
