"""Notices the end of other processes at once: a connection to each that says nothing and ends with it.

Works under any launcher, and needs nothing beside the ranks. Where a host dies without a word or a cable is cut,
keep-alives find it within some seconds.
"""

import contextlib
import os
import queue
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping

from evenkeel.trainer_sdk.control.fleet.address import join_address, split_address
from evenkeel.trainer_sdk.groups.store.silence import bound_silence

_CONNECT_SECONDS = 3.0
_PAUSE_SECONDS = 0.05
_BACKLOG = 512

_open: "weakref.WeakSet[Lifelines]" = weakref.WeakSet()


class Lifelines:
    """This process's ends of all lines. Any thread.

    Args:
        host: Address to listen on.
        on_end: Called on the lines' thread, once for each line, with the name under which it was opened and a reason.

    Attributes:
        address: ``host:port`` for others.
    """

    def __init__(self, host: str, on_end: Callable[[str, str], None]) -> None:
        self._on_end = on_end
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.address = join_address(host, self._listener.getsockname()[1])
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._wanted: dict[str, str] = {}  # name -> address
        self._lines: dict[str, socket.socket] = {}
        self._opening: set[str] = set()
        self._opened: queue.SimpleQueue[tuple[str, socket.socket | str]] = queue.SimpleQueue()
        self._accepted: set[socket.socket] = set()
        self._closed = False
        _open.add(self)
        threading.Thread(target=self._run, name="evenkeel-lifelines", daemon=True).start()

    def hold(self, wanted: Mapping[str, str]) -> None:
        """Hold lines to these, by name, and to nobody else; returns at once."""
        with self._lock:
            self._wanted = dict(wanted)
        self._wake()

    def close(self) -> None:
        """End all lines: others notice."""
        with self._lock:
            self._closed = True
        self._wake()

    def let_go(self) -> None:
        """In a forked child: the lines are not its own, and must not outlive its parent."""
        for each in [self._listener, self._wake_reader, self._wake_writer, *self._lines.values(), *self._accepted]:
            with contextlib.suppress(OSError):
                each.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake_reader:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_reader.recv(4096)
                else:
                    self._ended(key)
            self._adjust()
        self.let_go()
        while not self._opened.empty():  # opened just before the end
            _, line = self._opened.get()
            if isinstance(line, socket.socket):
                line.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            line, _ = self._listener.accept()
            self._accepted.add(_kept_alive(line))
            self._selector.register(line, selectors.EVENT_READ, "")

    def _ended(self, key: selectors.SelectorKey) -> None:
        line, name = key.fileobj, key.data
        assert isinstance(line, socket.socket), "only sockets are registered"
        why = "its process ended"
        try:
            if line.recv(1):
                return
        except OSError as error:
            why = f"the connection to it broke: {error.strerror or error}"
        self._drop(line)
        if name and self._lines.pop(name, None) is not None:
            self._end(name, why)

    def _adjust(self) -> None:
        """Open what is wanted and not there, end what is there and not wanted."""
        with self._lock:
            wanted = dict(self._wanted)
        while not self._opened.empty():
            name, line = self._opened.get()
            self._opening.discard(name)
            if isinstance(line, socket.socket):
                self._lines[name] = line
                self._selector.register(line, selectors.EVENT_READ, name)
            elif wanted.pop(name, None) is not None:
                self._end(name, line)
        for name in [each for each in self._lines if each not in wanted]:
            self._drop(self._lines.pop(name))
        for name in wanted.keys() - self._lines.keys() - self._opening:
            self._opening.add(name)
            threading.Thread(target=self._open, args=(name, wanted[name]), name="evenkeel-line", daemon=True).start()

    def _open(self, name: str, address: str) -> None:
        """On a thread of its own: one that does not answer keeps nobody waiting."""
        try:
            found: socket.socket | str = _connect(address)
        except OSError as error:
            found = f"nobody answers at {address}: {error.strerror or error}"
        with self._lock:
            if not self._closed:
                self._opened.put((name, found))
            elif isinstance(found, socket.socket):
                found.close()
        self._wake()

    def _end(self, name: str, why: str) -> None:
        with self._lock:
            self._wanted.pop(name, None)
        self._on_end(name, why)

    def _drop(self, line: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line)
        self._accepted.discard(line)
        line.close()


def is_reached(address: str) -> bool:
    """Whether a process answers where it has its end of lines; blocks for some seconds at most."""
    try:
        socket.create_connection(split_address(address), _CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _connect(address: str) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return _kept_alive(socket.create_connection(split_address(address), _CONNECT_SECONDS))
        except ConnectionRefusedError:
            raise
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


def _kept_alive(line: socket.socket) -> socket.socket:
    line.setblocking(False)
    bound_silence(line)
    return line


def _after_fork() -> None:
    for each in list(_open):
        each.let_go()


os.register_at_fork(after_in_child=_after_fork)
