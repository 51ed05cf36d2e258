import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, kw_only=True)
class Authority:
    """A certificate authority made for one test, and what it signs."""

    folder: Path
    name: str

    @property
    def ca_file(self) -> Path:
        return self.folder / f"{self.name}.crt"

    def sign(self, name: str, names: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path]:
        """A certificate for ``names`` and its key."""
        request, certificate, key, extension = (
            self.folder / f"{self.name}-{name}.{end}" for end in ("csr", "crt", "key", "ext")
        )
        extension.write_text(f"subjectAltName={names}\n")
        openssl("req", *_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        signer = ("-CA", self.ca_file, "-CAkey", self.folder / f"{self.name}.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signer, "-days", "2", "-extfile", extension, "-out", certificate)
        return certificate, key


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def authority(folder: Path, name: str) -> Authority:
    made = Authority(folder=folder, name=name)
    key = folder / f"{name}.key"
    openssl("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}", "-keyout", key, "-out", made.ca_file)
    return made


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("theirs"), "theirs")
