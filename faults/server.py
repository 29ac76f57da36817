"""The hostile mix of benchmarks/serving.py against a real server: a case is one request."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from faults.core import MB, Part, Plan, Row

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "serving.py"
CLIENTS = 32
PATIENCE = 5.0
"""Seconds that the server gives a body."""
NEEDS = ("fastapi", "uvicorn", "prometheus_client")


def why_not() -> str | None:
    missing = [name for name in NEEDS if not find_spec(name)]
    return f"{', '.join(missing)} not installed" if missing else None


def whole(plan: Plan, row: Row) -> None:
    found = plan.folder / "found.json"
    count = len(plan.numbers)
    command = [sys.executable, str(SCRIPT), "hostile", "--size", "small", "--clients", str(min(CLIENTS, count))]
    command += ["--requests", str(count), "--seed", str(plan.seed), "--first", str(plan.numbers[0])]
    command += ["--patience", str(PATIENCE)]
    done = subprocess.run([*command, "--json", str(found)], capture_output=True, text=True, cwd=plan.folder)
    if not found.exists():
        row.tried, row.found = count, {plan.numbers[0]: " | ".join(done.stderr.strip().splitlines()[-3:])}
        return
    facts = json.loads(found.read_text())
    row.tried, row.memory = facts["requests"], int(facts["memory"] * MB)
    row.found = {int(number): reason for number, reason in facts["wrong"].items()}
    if done.returncode and not row.found:
        row.found[plan.numbers[0]] = f"of all requests together: {done.stderr.strip().splitlines()[-1]}"


PART = Part("server", count=20_000, slice=50, seconds=0, whole=whole, why_not=why_not)
