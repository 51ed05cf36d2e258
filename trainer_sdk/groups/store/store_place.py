"""Where a job's stores are. Loads no torch: launchers read it too."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where the store is, and the job's part of it."""

    host: str
    port: int
    job_id: str

    @classmethod
    def all_of(cls, addresses: str, job_id: str) -> "tuple[StorePlace, ...]":
        """Those of a list such as ``a:1,b:1,c:1``.

        Raises:
            ValueError: It is none.
        """
        found = []
        for address in addresses.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"store address {address!r}: expected host:port, or several of them, comma-separated")
            found.append(cls(host, int(port), job_id))
        return tuple(found)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
