"""Generates the Python code of all contracts into ``protos/gen``.

Run from anywhere: ``python protos/generate.py``; with ``--check`` nothing is written and the exit status is 1 when
the committed code is stale. The same bytes come out on every machine: protoc comes from the locked grpcio-tools.
"""

import argparse
import filecmp
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
GENERATED = ROOT / "gen"


def generate(target: Path) -> None:
    """Writes messages, services and type stubs of every ``.proto`` below ``protos/evenkeel`` into ``target``."""
    sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "evenkeel").rglob("*.proto"))
    includes = [f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    if protoc.main(["protoc", *includes, *outputs, *sources]) != 0:
        raise SystemExit("protoc failed; see its message above")
    for folder in (target / "evenkeel").rglob("*"):
        if folder.is_dir():
            (folder / "__init__.py").touch()
    # A file without services has an empty grpc module: noise.
    for module in target.rglob("*_pb2_grpc.py"):
        if "class " not in module.read_text():
            module.unlink()
            module.with_suffix(".pyi").unlink(missing_ok=True)


def stale_files(fresh: Path, committed: Path) -> list[str]:
    """Relative paths that differ between two generated trees, or exist in one only."""

    def listing(root: Path) -> set[str]:
        return {
            str(path.relative_to(root))
            for path in root.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    ours, theirs = listing(fresh), listing(committed)
    changed = {name for name in ours & theirs if not filecmp.cmp(fresh / name, committed / name, shallow=False)}
    return sorted(changed | (ours ^ theirs))


def main() -> int:
    """Generates, or checks with ``--check``; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare with the committed code")
    check_only = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        if check_only:
            stale = stale_files(fresh, GENERATED)
            for name in stale:
                print(f"stale: protos/gen/{name}", file=sys.stderr)
            if stale:
                print("run: make generate", file=sys.stderr)
            return 1 if stale else 0
        shutil.rmtree(GENERATED, ignore_errors=True)
        shutil.copytree(fresh, GENERATED)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
