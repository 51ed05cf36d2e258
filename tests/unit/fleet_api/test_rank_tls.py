"""Whom the scheduler can talk to, and the settings that say how; files of keys are the integration tests' matter."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from evenkeel.scheduler.v1 import scheduler_pb2 as pb
from evenkeel.services.scheduler.adapters.ranks.tls import (
    RankTls,
    RankTlsSettings,
    SecurityMismatchError,
    check_security,
    tls_advice,
)

PLAIN = (pb.CONTROLLER_SECURITY_UNSPECIFIED, pb.CONTROLLER_SECURITY_PLAIN)
TLS = RankTls(certificates=b"")
MUTUAL = RankTls(certificates=b"", chain=b"", key=b"")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK_CA_FILE", "RANK_TLS_NAME", "SCHEDULER_CERTIFICATE", "SCHEDULER_KEY"):
        monkeypatch.delenv(f"EVENKEEL_{name}", raising=False)


@pytest.mark.parametrize(
    ("security", "tls"),
    [
        *((plain, None) for plain in PLAIN),
        (pb.CONTROLLER_SECURITY_TLS, TLS),
        (pb.CONTROLLER_SECURITY_TLS, MUTUAL),
        (pb.CONTROLLER_SECURITY_MUTUAL_TLS, MUTUAL),
    ],
)
def test_ranks_that_want_what_the_scheduler_has_are_taken(
    security: "pb.ControllerSecurity.ValueType", tls: RankTls | None
) -> None:
    check_security(security, tls)


@pytest.mark.parametrize(
    ("security", "tls", "setting"),
    [
        *((plain, TLS, "give the job EVENKEEL_RANK_CERTIFICATE") for plain in PLAIN),
        (pb.CONTROLLER_SECURITY_TLS, None, "set EVENKEEL_RANK_CA_FILE"),
        (pb.CONTROLLER_SECURITY_MUTUAL_TLS, None, "set EVENKEEL_RANK_CA_FILE"),
        (pb.CONTROLLER_SECURITY_MUTUAL_TLS, TLS, "EVENKEEL_SCHEDULER_CERTIFICATE"),
    ],
)
def test_others_are_refused_with_the_setting_to_change(
    security: "pb.ControllerSecurity.ValueType", tls: RankTls | None, setting: str
) -> None:
    with pytest.raises(SecurityMismatchError, match=setting):
        check_security(security, tls)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"RANK_CA_FILE": "/nowhere/ca.crt"}, "there is no file /nowhere/ca.crt"),
        ({"SCHEDULER_CERTIFICATE": "/nowhere/a.crt"}, "there is no file /nowhere/a.crt"),
        ({"RANK_TLS_NAME": "ranks"}, "no effect without EVENKEEL_RANK_CA_FILE"),
    ],
)
def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], message: str) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"EVENKEEL_{name}", value)
    with pytest.raises(ValidationError, match=message):
        RankTlsSettings()


def test_a_file_without_certificates_is_refused_and_a_certificate_needs_its_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file.pem"
    file.write_text("no certificate")
    monkeypatch.setenv("EVENKEEL_RANK_CA_FILE", str(file))
    with pytest.raises(ValidationError, match="holds no certificate in PEM form"):
        RankTlsSettings()
    monkeypatch.delenv("EVENKEEL_RANK_CA_FILE")
    monkeypatch.setenv("EVENKEEL_SCHEDULER_CERTIFICATE", str(file))
    with pytest.raises(ValidationError, match="both or neither"):
        RankTlsSettings()


def test_without_settings_there_is_no_tls() -> None:
    assert RankTls.from_settings(RankTlsSettings()) is None


@pytest.mark.parametrize("reason", ["Socket closed", "Connection refused", "Deadline Exceeded", "Broken pipe"])
def test_a_process_that_is_gone_is_no_matter_of_certificates(reason: str) -> None:
    assert tls_advice(f"failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:5: {reason}") == ""
