"""Whether PEM files can be used for TLS: asked when settings are read, because gRPC says so only of the first call.

All functions read files and block for a moment; messages name the file and what is wrong with it, never its content.
"""

import ssl
from pathlib import Path


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


def check_key_pair(names: tuple[str, str], certificate: Path | None, key: Path | None) -> None:
    """Accept a certificate chain and its private key, or neither.

    Args:
        names: The settings that they are from; messages begin with them.
        certificate: The chain.
        key: The key.

    Raises:
        ValueError: One without the other, a file cannot be read, the key is encrypted, or the two do not belong
            together.
    """
    try:
        for path in (certificate, key):
            if path is not None:
                _check_readable(path)
        if certificate is not None and key is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
        elif certificate is not None or key is not None:
            raise ValueError("set both or neither")
    except ssl.SSLError as error:
        reason = getattr(error, "reason", "") or "not a certificate and a key without a password in PEM form"
        raise ValueError(f"{', '.join(names)}: {certificate} and {key} cannot be used together: {reason}") from error
    except ValueError as error:
        raise ValueError(f"{', '.join(names)}: {error}") from error


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
