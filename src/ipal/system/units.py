"""Numbers with their units, as people read them."""


def size(count: float) -> str:
    """Bytes in readable units."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def many(count: int, word: str) -> str:
    """`1 node`, `2 classes`."""
    return f"{count} {word}" + ("" if count == 1 else "es" if word.endswith("s") else "s")
