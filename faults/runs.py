"""Whether two runs ended in the same bits: everything but times, memory and the machine."""

import json
from pathlib import Path
from typing import Any

from faults.core import Failed

NOT_COMPARED = ("timing", "peak_memory_bytes")
SAME_BYTES = ("config.yaml", "history.csv", "confusion.json")


def must_be_equal(run: Path, reference: Path) -> None:
    """A finished run against another of the same configuration."""
    if _result(run) != _result(reference):
        raise Failed(f"another result: {_first_difference(_result(run), _result(reference))}")
    for name in SAME_BYTES:
        if _content(run / name) != _content(reference / name):
            raise Failed(f"another {name}")
    must_be_equal_models(run / "model.safetensors", reference / "model.safetensors")
    if (run / "checkpoint.safetensors").exists():
        raise Failed("the checkpoint is still there")
    must_have_no_leftovers(run)


def must_be_equal_models(model: Path, reference: Path) -> None:
    """Every tensor bit for bit, and the facts."""
    ours, theirs = tensors(model), tensors(reference)
    if ours != theirs:
        names = [name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)]
        raise Failed(f"another model: {', '.join(sorted(names))[:200]}")


def must_have_no_leftovers(folder: Path) -> None:
    """Temporary files begin with a dot, as the lock does."""
    left = [
        path.name
        for path in folder.iterdir()
        if path.name.startswith(".") and not path.name.startswith((".lock", ".asked-"))
    ]
    if left:
        raise Failed(f"left behind: {', '.join(left)[:200]}")


def tensors(path: Path) -> dict[str, Any]:
    """What a .safetensors file holds, by name: kind, shape and bytes of tensors, and the facts; in any order."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    facts = header.pop("__metadata__", {}).get("facts")
    found: dict[str, Any] = {"facts": json.loads(facts) if facts else None}
    for name, about in header.items():
        first, last = about["data_offsets"]
        found[f"tensor {name}"] = (about["dtype"], about["shape"], content[begin + first : begin + last])
    return found


def _result(run: Path) -> dict[str, Any]:
    try:
        content = json.loads((run / "result.json").read_text())
    except FileNotFoundError as error:
        raise Failed("there is no result.json") from error
    return {name: value for name, value in content.items() if name not in NOT_COMPARED}


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _first_difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    return next(name for name in {**one, **other} if one.get(name) != other.get(name))
