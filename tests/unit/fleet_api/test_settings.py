from pathlib import Path

import pytest
from pydantic import ValidationError

from evenkeel.services.scheduler.adapters.api.settings import FleetApiSettings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEET_ADDRESS", "FLEET_TOKEN", "TLS_CERTIFICATE", "TLS_KEY"):
        monkeypatch.delenv(f"EVENKEEL_{name}", raising=False)


def test_settings_come_from_the_environment_and_hide_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_FLEET_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("EVENKEEL_FLEET_ADDRESS", "0.0.0.0:0")

    settings = FleetApiSettings()

    assert settings.fleet_address == "0.0.0.0:0"
    assert settings.tls_certificate is None
    assert "0123456789abcdef" not in repr(settings)


@pytest.mark.parametrize("token", ["", "short", "ä" * 20, "with a blank in the middle"])
def test_a_weak_token_is_refused(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("EVENKEEL_FLEET_TOKEN", token)

    with pytest.raises(ValidationError, match="at least 16"):
        FleetApiSettings()


def test_a_certificate_without_its_key_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificate = tmp_path / "tls.crt"
    certificate.write_text("pem")
    monkeypatch.setenv("EVENKEEL_FLEET_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("EVENKEEL_TLS_CERTIFICATE", str(certificate))

    with pytest.raises(ValidationError, match="both or neither"):
        FleetApiSettings()


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_FLEET_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("EVENKEEL_TLS_KEY", "/nowhere/tls.key")

    with pytest.raises(ValidationError, match=r"/nowhere/tls\.key"):
        FleetApiSettings()
