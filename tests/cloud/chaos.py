"""A bad network: a TCP proxy that resets, stalls, loses answers, flips bits and throttles, on request.

with ChaosProxy(port_of_a_server) as proxy:
    proxy.next(Fault("reset", match=b"PUT ", after=100_000))    # in the middle of the next upload
    client(f"http://127.0.0.1:{proxy.port}")
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

PIECE = 1 << 16


@dataclass
class Fault:
    """What happens to the next requests that match."""

    kind: Literal["reset", "stall", "lose answer", "flip", "flip answer"]
    match: bytes = b"PUT "
    """a regular expression that is found in the head of the request"""
    after: int = 0
    """at which byte of the body it happens; 0: before anything is passed on"""
    times: int = 1


class ChaosProxy:
    """Listens on a port of 127.0.0.1 and passes everything on to another one, mostly."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.rate: float | None = None
        """bytes a second that each connection passes on towards the server; None: all it can"""
        self.fired = 0
        """how many faults have happened"""
        self.bytes_up = 0
        """bytes passed on towards the server"""
        self._dead = False
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closing = threading.Event()
        threading.Thread(target=self._accept, name="chaos-accept", daemon=True).start()

    def next(self, *faults: Fault) -> None:
        """Let these happen, in this order, to requests to come."""
        with self._lock:
            self._faults += faults

    @property
    def dead(self) -> bool:
        """Whether nobody gets through; set it to cut all connections and refuse new ones."""
        return self._dead

    @dead.setter
    def dead(self, dead: bool) -> None:
        self._dead = dead
        if dead:
            self._cut_all()

    def close(self) -> None:
        """Cut everything."""
        self._closing.set()
        self._listener.close()
        self._cut_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._dead:
                _reset(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target), 5)
                server.settimeout(None)
            except OSError:
                _reset(client)
                continue
            with self._lock:
                self._open |= {client, server}
            link = _Link(self, client, server)
            for each in (link.up, link.down):
                threading.Thread(target=each, name="chaos-link", daemon=True).start()

    def take(self, head: bytes) -> Fault | None:
        """The next fault, if a request with this head is the one that it waits for."""
        with self._lock:
            for fault in self._faults:
                if re.search(fault.match, head):
                    fault.times -= 1
                    if fault.times <= 0:
                        self._faults.remove(fault)
                    return Fault(fault.kind, fault.match, fault.after)
        return None

    def happened(self) -> None:
        """Count a fault."""
        with self._lock:
            self.fired += 1

    def stall(self) -> None:
        """Wait until the proxy is closed."""
        self._closing.wait()

    def forget(self, *sockets: socket.socket) -> None:
        """These are closed."""
        with self._lock:
            self._open -= set(sockets)

    def _cut_all(self) -> None:
        with self._lock:
            sockets, self._open = self._open, set()
        for each in sockets:
            _reset(each)


class _Link:
    """One connection: two threads, one for each direction."""

    def __init__(self, proxy: ChaosProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._fault: Fault | None = None
        self._seen = 0  # bytes of the body, since the fault was armed

    def up(self) -> None:
        """From the client to the server."""
        with suppress(OSError):
            while data := self._client.recv(PIECE):
                body = len(data)
                if self._fault is None and (end := data.find(b"\r\n\r\n")) >= 0:
                    self._fault = self._proxy.take(data[:end])
                    self._seen, body = 0, len(data) - end - 4
                data = self._meddle(data, body)
                if self._proxy.rate is not None:
                    time.sleep(len(data) / self._proxy.rate)
                self._server.sendall(data)
                self._proxy.bytes_up += len(data)
        self._close()

    def _meddle(self, data: bytes, body: int) -> bytes:
        """Do what the fault says when its byte of the body comes by, in the last `body` bytes of `data`."""
        fault = self._fault
        if fault is None or fault.kind in ("lose answer", "flip answer"):
            return data
        begin, self._seen = self._seen, self._seen + body
        at_once = fault.after == 0 and fault.kind != "flip"  # also where there is no body
        if not at_once and not (begin <= fault.after < self._seen):
            return data
        self._fault = None
        self._proxy.happened()
        at = 0 if at_once else len(data) - body + fault.after - begin
        if fault.kind == "flip":
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        self._server.sendall(data[:at])
        if fault.kind == "stall":
            self._proxy.stall()
        raise OSError("reset")

    def down(self) -> None:
        """From the server to the client."""
        with suppress(OSError):
            while data := self._server.recv(PIECE):
                fault = self._fault
                if fault is not None and fault.kind == "lose answer" and b"100 Continue" not in data[:40]:
                    self._fault = None
                    self._proxy.happened()
                    raise OSError("lost")
                if fault is not None and fault.kind == "flip answer":
                    head = data.find(b"\r\n\r\n") + 4 if data.startswith(b"HTTP/") else 0
                    begin, self._seen = self._seen, self._seen + len(data) - head
                    if begin <= fault.after < self._seen:
                        self._fault = None
                        self._proxy.happened()
                        at = head + fault.after - begin
                        data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                self._client.sendall(data)
        self._close()

    def _close(self) -> None:
        self._proxy.forget(self._client, self._server)
        _reset(self._client)
        _reset(self._server)


def _reset(connection: socket.socket) -> None:
    """Close at once, with RST where something is still to be sent."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
