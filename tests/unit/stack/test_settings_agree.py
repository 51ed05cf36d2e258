"""docker-compose.yml, the Dockerfile, the code and the documentation say the same: names, versions, ports."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from evenkeel.cli.pages.settings import (
    CLIENT_SETTINGS,
    COMPOSE_SETTINGS,
    PREFIX,
    page,
    service_settings,
    settings_class,
)
from evenkeel.stack.kafka.jars import kafka_version
from evenkeel.stack.services import SERVICE_NAMES, process_names
from evenkeel.trainer_sdk.watch.service_settings import ServiceSettings

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCUMENTED = {*service_settings(), *CLIENT_SETTINGS, *COMPOSE_SETTINGS}
CODE_FOLDERS = ("cli", "contracts", "demo", "history", "layouts", "services", "simulator", "stack", "trainer_sdk")


def names_in(text: str) -> set[str]:
    # What ends in an underscore is a prefix, no name.
    return {name for name in re.findall(r"EVENKEEL_[A-Z_]+", text) if not name.endswith("_")}


def evenkeel_names(environment: dict[str, str]) -> set[str]:
    return {name for name in environment if name.startswith(PREFIX)}


def test_the_settings_page_is_what_the_classes_say() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == page()


@pytest.mark.parametrize("folder", CODE_FOLDERS)
def test_every_setting_that_the_code_names_is_documented(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        assert names_in(path.read_text()) <= DOCUMENTED, path


def test_every_setting_that_other_pages_name_is_documented() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        assert names_in(path.read_text()) <= DOCUMENTED, path


def test_every_client_setting_is_read_somewhere() -> None:
    code = "".join(path.read_text() for folder in CODE_FOLDERS for path in (ROOT / folder).rglob("*.py"))
    page = (ROOT / "cli" / "pages" / "settings.py").read_text()
    by_field = {PREFIX + each.name.upper() for each in fields(ServiceSettings)}
    assert set(CLIENT_SETTINGS) <= names_in(code.replace(page, "")) | by_field


@pytest.mark.parametrize("process", process_names(SERVICE_NAMES, 2))
def test_compose_gives_each_service_settings_that_it_has_and_all_that_it_needs(process: str) -> None:
    fields = settings_class(process.partition("-")[0]).model_fields
    known = {PREFIX + name.upper() for name in fields}
    required = {PREFIX + name.upper() for name, info in fields.items() if info.is_required()}
    given = evenkeel_names(SERVICES[process]["environment"])
    assert given <= known
    assert required <= given


def test_what_compose_takes_from_outside_is_documented_and_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    taken = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    assert {name for name, _ in taken} <= DOCUMENTED
    assert set(COMPOSE_SETTINGS) <= {name for name, _ in taken}
    assert all(rest.startswith(":-") and len(rest) > 2 for _, rest in taken)


def test_the_services_are_one_image_that_differs_by_command() -> None:
    ours = [SERVICES[name] for name in (*SERVICE_NAMES, "migrate", "topics")]
    assert len({each["image"] for each in ours}) == 1
    assert len({tuple(each["command"]) for each in ours}) == len(ours)
    for name in SERVICE_NAMES:
        first, second = (SERVICES[each] for each in process_names([name], 2))
        apart = ("environment", "ports")
        assert {key: first[key] for key in first.keys() - apart} == {key: second[key] for key in second.keys() - apart}
    assert {SERVICES[name]["command"][-1] for name in SERVICE_NAMES} == {
        f"evenkeel.services.{name}" for name in SERVICE_NAMES
    }


def test_nothing_is_published_beyond_this_machine_by_default_and_no_container_has_a_fixed_name() -> None:
    published = [port for each in SERVICES.values() for port in each.get("ports", ())]
    assert len(published) == 4
    assert all(port.startswith("${EVENKEEL_PUBLISH_HOST:-127.0.0.1}:") for port in published)
    assert not any("container_name" in each for each in SERVICES.values())


def test_every_service_is_checked_and_starts_after_what_it_needs() -> None:
    for name in SERVICE_NAMES:
        assert SERVICES[name]["healthcheck"]["test"]
        conditions = {other: after["condition"] for other, after in SERVICES[name]["depends_on"].items()}
        assert conditions == {
            "kafka": "service_healthy",
            "postgres": "service_healthy",
            "migrate": "service_completed_successfully",
            "topics": "service_completed_successfully",
        }
    assert all(SERVICES[name]["healthcheck"]["test"] for name in ("kafka", "postgres"))


def test_the_local_stack_and_compose_run_the_same_kafka() -> None:
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{kafka_version()}"


def test_the_locks_are_pinned_with_hashes_and_name_no_address() -> None:
    locks = sorted((ROOT / "requirements").glob("*.lock"))
    assert [path.stem for path in locks] == ["dev", "services", "tools", "torchtitan", "trainer"]
    for path in locks:
        text = path.read_text()
        pins = re.findall(r"^(\S+)==", text, flags=re.MULTILINE)
        assert len(pins) == len(re.findall(r"^\S+==.*\\\n    --hash=sha256:", text, flags=re.MULTILINE))
        assert "://" not in text


def test_the_services_image_has_no_torch_and_agrees_with_the_lock_that_tests_run_on() -> None:
    tested = pins_of("dev.lock")
    for name in ("services.lock", "trainer.lock"):
        for package, versions in pins_of(name).items():
            assert versions <= tested[package], package
    assert "torch" not in pins_of("services.lock")
    assert "torch" in pins_of("trainer.lock")


def pins_of(lock: str) -> dict[str, set[str]]:
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements" / lock).read_text(), re.MULTILINE):
        pins.setdefault(name, set()).add(version)
    return pins
