"""Notices the end of other processes at once: a connection to each that says nothing and ends with it.

Works under any launcher, and needs nothing beside the ranks. Where a host dies without a word or a cable is cut,
keep-alives find it within some seconds.
"""

import contextlib
import os
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
        self._lines: dict[str, socket.socket] = {}  # also those that nobody has answered yet
        self._begun_at: dict[str, float] = {}  # name -> when it was first tried
        self._tries_at = 0.0
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
            for key, _ in self._selector.select(self._adjust()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake_reader:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_reader.recv(4096)
                else:
                    self._look(key)
        self.let_go()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            line, _ = self._listener.accept()
            line.setblocking(False)
            bound_silence(line)
            self._accepted.add(line)
            self._selector.register(line, selectors.EVENT_READ, "")

    def _look(self, key: selectors.SelectorKey) -> None:
        """A line has ended, or could not be opened."""
        line, name = key.fileobj, key.data
        assert isinstance(line, socket.socket), "only sockets are registered"
        failure = None
        try:
            if line.recv(1):
                return
        except OSError as error:
            failure = error
        self._drop(line)
        if name and self._lines.pop(name, None) is not None:
            if failure is None:
                self._end(name, "its process ended")
            else:
                self._failed(name, failure)

    def _adjust(self) -> float | None:
        """Open what is wanted and not there, end what is there and not wanted; after how many seconds to try again."""
        with self._lock:
            wanted = dict(self._wanted)
        for name in self._lines.keys() - wanted.keys():
            self._drop(self._lines.pop(name))
        self._begun_at = {name: at for name, at in self._begun_at.items() if name in wanted}
        if time.monotonic() >= self._tries_at:
            for name in wanted.keys() - self._lines.keys():
                self._open(name, wanted[name])
        return _PAUSE_SECONDS if time.monotonic() < self._tries_at else None

    def _open(self, name: str, address: str) -> None:
        """Begin to open it: one that does not answer keeps nobody waiting."""
        self._begun_at.setdefault(name, time.monotonic())
        try:
            self._lines[name] = line = _begun(address)
        except OSError as error:
            self._failed(name, error)
        else:
            self._selector.register(line, selectors.EVENT_READ, name)

    def _failed(self, name: str, error: OSError) -> None:
        """It broke, or is not there: for good, unless it was just begun and the network may yet be mended."""
        now, is_clear = time.monotonic(), isinstance(error, ConnectionRefusedError | TimeoutError)
        if is_clear or now > self._begun_at[name] + _CONNECT_SECONDS:
            self._end(name, f"it is not reached: {error.strerror or error}")
        else:
            self._tries_at = now + _PAUSE_SECONDS

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


def _begun(address: str) -> socket.socket:
    """A connection on its way."""
    host, port = split_address(address)
    line = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        line.setblocking(False)
        bound_silence(line)
        with contextlib.suppress(BlockingIOError):
            line.connect((host, port))
    except OSError:
        line.close()
        raise
    return line


def _after_fork() -> None:
    for each in list(_open):
        each.let_go()


os.register_at_fork(after_in_child=_after_fork)
