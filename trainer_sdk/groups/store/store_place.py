"""Where a job's stores are. Loads no torch: launchers read it too."""

from dataclasses import dataclass

from evenkeel.trainer_sdk.control.fleet.address import join_address, split_address


def is_loopback(host: str) -> bool:
    """Whether a name or an address says that only this machine is meant."""
    return host in ("localhost", "::1") or host.startswith("127.")


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
        try:
            return tuple(cls(*split_address(each), job_id) for each in addresses.split(","))
        except ValueError as error:
            raise ValueError(f"store address {error}, or several of them, comma-separated") from error

    def __str__(self) -> str:
        return join_address(self.host, self.port)
