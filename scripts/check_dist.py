"""Check a built wheel and sdist: what they hold, and that the wheel works in a fresh environment.

make dist
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

NEEDED = (
    "ipal/py.typed",
    "ipal/__init__.pyi",
    "ipal/cli/__init__.py",
    "ipal/report/page/templates/",
    "ipal/report/page/static/",
    "/experiments/table1-cs.yaml",
)
DATA = (".npz", ".npy", ".graph", ".safetensors", ".parquet", ".csv", ".pt", ".pkl")
MOST_BYTES = 5_000_000
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def members(archive: Path) -> list[str]:
    """Names of all files of a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.namelist()
    with tarfile.open(archive) as source:
        return source.getnames()


def faults(archive: Path) -> list[str]:
    """What is missing from an archive or does not belong into it."""
    names = members(archive)
    found = [f"{part} is missing" for part in NEEDED if not any(part in name for name in names)]
    found += [f"{name} is data" for name in names if name.endswith(DATA)]
    if not any(name.endswith("LICENSE") for name in names):
        found.append("LICENSE is missing")
    if archive.stat().st_size > MOST_BYTES:
        found.append(f"it has {archive.stat().st_size:,} bytes")
    return [f"{archive.name}: {fault}" for fault in found]


def try_out(wheel: Path) -> None:
    """Install a wheel into an environment of its own, and run the first command there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        install = [folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", "-c", CONSTRAINTS]
        subprocess.run([*install, "--disable-pip-version-check", wheel.resolve()], check=True)
        files = [path for path in (folder / "venv").rglob("*") if path.is_file() and not path.is_symlink()]
        print(f"installed: {sum(path.stat().st_blocks * 512 for path in files) / 1e6:,.0f} MB", flush=True)
        ipal = folder / "venv/bin/ipal"
        subprocess.run([ipal, "--version"], check=True, cwd=folder)
        subprocess.run([ipal, "run", "--dataset", "digits", "--method", "analytic"], check=True, cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="with one wheel and one sdist")
    folder = parser.parse_args().folder
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    if found := faults(wheel) + faults(source):
        sys.exit("\n".join(found))
    try_out(wheel)


if __name__ == "__main__":
    main()
