"""`ipal show MODEL`: what a saved model is, what it keeps, and its history."""

from pathlib import Path

from rich.table import Table

from ipal.cli import render


def show_model(path: Path, as_json: bool) -> None:
    """Print a model file as tables, or as JSON."""
    from ipal.estimator.display import in_words
    from ipal.estimator.files import load

    model = load(path)
    kept, counts = model.memory_report(), model.nodes_behind_class()
    content = {
        "model": str(path),
        "bytes": path.stat().st_size,
        "method": model.name,
        "features": model.num_features,
        "classes": {name: counts.get(name) for name in map(str, model.labels)},
        "kept": kept["items"],
        "stores_exemplars": kept["stores_exemplars"],
        "history": [event.model_dump() for event in model.history],
    }
    if as_json:
        render.as_json(content)
        return
    rows = [(name, "" if nodes is None else str(nodes)) for name, nodes in content["classes"].items()]
    render.out.print(render.table(("class", "nodes learned"), rows, numbers=["nodes learned"]))
    history = render.table(("when", "what", "classes", "nodes"), numbers=["nodes"], title="History")
    for one in model.history:
        more = one.number - len(one.classes)
        classes = (
            ", ".join(one.classes) + f" and {more} more" * (more > 0) + f" -> {', '.join(one.into)}" * bool(one.into)
        )
        history.add_row((one.time or "").replace("T", " "), one.what, classes, str(one.nodes or ""))
    render.out.print(history)
    facts = Table.grid(padding=(0, 2))
    facts.add_row("model", f"{in_words(model)}; {render.many(model.num_features, 'feature')} a node")
    items = "; ".join(f"{item['what']} ({render.size(item['bytes'])})" for item in kept["items"])
    facts.add_row("kept", f"{items}; {'raw nodes ARE stored' if kept['stores_exemplars'] else 'no node is stored'}")
    facts.add_row("file", f"{path} ({render.size(content['bytes'])})")
    render.out.print(facts, soft_wrap=True)
