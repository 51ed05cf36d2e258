import pytest
from pydantic import SecretStr

from evenkeel.services.common.settings import DatabaseSettings, ServiceSettings, effective, load_settings


class ExampleSettings(ServiceSettings, DatabaseSettings):
    pass


GOOD = {
    "EVENKEEL_KAFKA_BOOTSTRAP_SERVERS": "one:9092,two:9092",
    "EVENKEEL_DATABASE_URL": "postgresql://evenkeel:hunter2@localhost:5432/evenkeel",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)


def test_good_settings_are_read_by_prefix() -> None:
    settings = load_settings(ExampleSettings)
    assert settings.kafka_bootstrap_servers == "one:9092,two:9092"
    assert isinstance(settings.database_url, SecretStr)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS", "no port here", "is not host:port"),
        ("EVENKEEL_METRICS_PORT", "abc", "integer"),
        ("EVENKEEL_METRICS_PORT", "70000", "65535"),
        ("EVENKEEL_DATABASE_URL", "mysql://x:hunter2@y/z", "not a postgresql:// address"),
        ("EVENKEEL_LOG_LEVEL", "LOUD", "for example INFO"),
        ("EVENKEEL_INSTANCE_ID", "a b", "pattern"),
        ("EVENKEEL_KAFKA_CA_FILE", "/nowhere/ca.pem", "there is no file /nowhere/ca.pem"),
        ("EVENKEEL_KAFKA_CA_FILE", __file__, "holds no certificate"),
        ("EVENKEEL_READY_FILE", "/nowhere/ready.json", "there is no folder /nowhere"),
        ("EVENKEEL_KAFKA_SECURITY_PROTOCOL", "SASL_SSL", "needs EVENKEEL_KAFKA_SASL_USERNAME"),
    ],
)
def test_a_wrong_setting_ends_in_one_line_that_names_it_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        load_settings(ExampleSettings)
    message = capsys.readouterr().err
    assert caught.value.code == 2
    assert message.count("\n") == 1
    assert name in message
    assert words in message
    assert "hunter2" not in message


def test_a_missing_setting_says_what_it_is_and_gives_an_example(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EVENKEEL_KAFKA_BOOTSTRAP_SERVERS")
    with pytest.raises(SystemExit):
        load_settings(ExampleSettings)
    assert capsys.readouterr().err == (
        "wrong settings: EVENKEEL_KAFKA_BOOTSTRAP_SERVERS: is not set"
        " (Kafka brokers, host:port[,host:port]; for example localhost:9092)\n"
    )


def test_what_is_logged_at_start_has_every_setting_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_KAFKA_SASL_PASSWORD", "hunter3")
    shown = effective(load_settings(ExampleSettings))
    assert set(shown) == {f"EVENKEEL_{name.upper()}" for name in ExampleSettings.model_fields}
    assert shown["EVENKEEL_DATABASE_URL"] == "postgresql://evenkeel:***@localhost:5432/evenkeel"
    assert shown["EVENKEEL_KAFKA_SASL_PASSWORD"] == "***"
    assert "hunter" not in str(shown)
