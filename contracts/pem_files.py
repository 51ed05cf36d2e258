"""Whether PEM files can be used for TLS: asked when settings are read, because gRPC says so only of the first call.

All functions read files and block for a moment; messages name the file and what is wrong with it, never its content.
"""

import ssl
from pathlib import Path


def checked_file(path: Path | None) -> Path | None:
    """The path as it was given, if it can be read or is None.

    Raises:
        ValueError: There is no such file, or it cannot be read.
    """
    if path is not None:
        _check_readable(path)
    return path


def check_certificates(path: Path) -> None:
    """Accept a file of certificates that others' are signed by.

    Raises:
        ValueError: It cannot be read or holds none.
    """
    _check_readable(path)
    try:
        ssl.create_default_context(cafile=str(path))
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(f"{path} holds no certificate in PEM form") from error


def check_key_pair(certificate: Path, key: Path) -> None:
    """Accept a certificate chain and its private key.

    Raises:
        ValueError: A file cannot be read, the key is encrypted, or the two do not belong together.
    """
    _check_readable(certificate)
    _check_readable(key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", "") or "not a certificate and a key without a password in PEM form"
        raise ValueError(f"{certificate} and {key} cannot be used together: {reason}") from error


def _no_password() -> str:
    """Instead of OpenSSL's question on the terminal."""
    return ""


def _check_readable(path: Path) -> None:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
