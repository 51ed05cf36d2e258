"""Settings by which Kafka is spoken to: none is needed, and a wrong one is told by its name."""

import pytest

from evenkeel.contracts.kafka_security import kafka_security

PROTOCOL, MECHANISM = "EVENKEEL_KAFKA_SECURITY_PROTOCOL", "EVENKEEL_KAFKA_SASL_MECHANISM"
WHO = {"EVENKEEL_KAFKA_SASL_USERNAME": "me", "EVENKEEL_KAFKA_SASL_PASSWORD": "secret"}


def test_nothing_set_is_plain() -> None:
    assert kafka_security({}) == kafka_security({PROTOCOL: ""}) == {"security_protocol": "PLAINTEXT"}


def test_a_protocol_gets_what_it_needs_and_nothing_else() -> None:
    assert kafka_security({**WHO, PROTOCOL: "SASL_PLAINTEXT", MECHANISM: "SCRAM-SHA-512"}) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "secret",
    }
    assert set(kafka_security({**WHO, PROTOCOL: "SSL"})) == {"security_protocol", "ssl_context"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({PROTOCOL: "TLS"}, "EVENKEEL_KAFKA_SECURITY_PROTOCOL is 'TLS': one of PLAINTEXT, SSL"),
        ({PROTOCOL: "SASL_SSL", MECHANISM: "GSSAPI", **WHO}, "EVENKEEL_KAFKA_SASL_MECHANISM is 'GSSAPI'"),
        ({PROTOCOL: "SASL_SSL", "EVENKEEL_KAFKA_SASL_USERNAME": "me"}, "EVENKEEL_KAFKA_SASL_PASSWORD"),
        ({PROTOCOL: "SSL", "EVENKEEL_KAFKA_CA_FILE": __file__}, f"EVENKEEL_KAFKA_CA_FILE: {__file__} holds no"),
    ],
)
def test_a_wrong_setting_is_told_by_its_name(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match="EVENKEEL_KAFKA") as caught:
        kafka_security(settings)
    assert said in str(caught.value)
