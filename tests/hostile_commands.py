"""Invocations of the command that nobody means well: each must end with exit code 2 and at most three lines.

`hostile_invocations(seed, count, folder)` writes damaged files into `folder` and returns lists of arguments (what comes
after `ipal`). The same seed and count give the same invocations, whatever was called before. Nothing is learned, and
nothing but `folder` is written to. A caller runs each one in `folder`, with a limit of 20 seconds and 2 GB of memory.
"""

import random
from pathlib import Path

from tests.hostile_files import GRAPH, LONG, HostileFiles

Invocation = list[str]

WORDS = [
    "",
    " ",
    "[/bold]",
    "[/x]",
    "[bold",
    "[link=file:///etc/passwd]x[/link]",
    ":smile: [red]",
    "\x1b[2J\x1b[31mred",
    "\u202eright to left",
    "\udcff\udcfe",  # bytes that are no UTF-8
    "../../../../etc/passwd",
    "/dev/zero",
    "/proc/self/mem",
    "-1",
    "NaN",
    "1e999",
    "0x" + "f" * LONG,
    "9" * LONG,
    "x" * LONG,
    "a/" * 2000,
    "a." * 3000 + "b=1",
    "{" * LONG,
    "&a [*a, *a]",
]
"""What stands for a name, a number or a path."""

NUMBERS = [str(10**23), "99999999999", "-1", "1.5", "", "nan", "inf", "9" * LONG, "[/b]"]

SETTINGS = [
    "encoder.layers=100000",
    "encoder.hidden=1000000000",
    "train.epochs=1000000000000000000000000",
    "threads=99999999",
    "seed=100000000000000000000000",
    "split=[99999999999999999999]",
    "protocol.class_order=[1.5]",
    "protocol.train_share=.nan",
    "train.lr_base=.inf",
    "method=[]",
    "method=2020-99-99",
    "dataset=[]",
    "ipal=[]",
    "ipal.gamma=[/bold]",
    "ipal.gamma=" + "9" * LONG + "x",
    "ipal.k=0x" + "f" * LONG,
    "train.epochs=!!int abc",
    "train.epochs=!!python/object/apply:os.getcwd []",
    "train.epochs=" + "[" * LONG,
    "=1",
    "no equals",
    "\x1b[31m=1",
    "a." * LONG + "b=1",
    "ipal.gamma=&a [*a]",
]

SIZES = [
    "nodes=99999999999999",
    "nodes=" + "9" * LONG,
    "nodes=2000000000,features=1000000",
    "nodes=-1",
    "features=99999999999",
    "degree=nan",
    "seed=" + "9" * 30,
    "nodes",
    "=",
    "[/bold]=1",
    "knots=5",
]


def hostile_invocations(seed: int, count: int, folder: Path) -> list[Invocation]:
    """So many invocations, drawn from all kinds in turn; their files are in `folder`."""
    draw = random.Random(seed)
    files = HostileFiles(folder)
    kinds = [_options, _settings, _sizes, _graphs, _configs, _experiments, _names, _runs, _places, _mutated]
    return [kinds[place % len(kinds)](draw, files) for place in range(count)]


# ---------------------------------------------------------------------- kinds of invocations


def _options(draw: random.Random, files: HostileFiles) -> Invocation:
    """A run with one option that cannot be."""
    option = draw.choice(["--seed", "--threads", "--split", "--checkpoint-every", "--memory-limit", "--device"])
    value = draw.choice([*NUMBERS, *WORDS])
    if option == "--checkpoint-every" and value.isdecimal():
        value = "0"
    if option == "--memory-limit" and value in {str(10**23), str(10**20), "99999999999", "1e5", "9" * LONG, "1e999"}:
        value = "-" + value
    if option in {"--seed", "--threads"} and value == "99999999999":
        value += "9" * 12
    return ["run", "--dataset", GRAPH, option, value]


def _settings(draw: random.Random, files: HostileFiles) -> Invocation:
    return ["run", "--dataset", GRAPH, "--set", draw.choice(SETTINGS)]


def _sizes(draw: random.Random, files: HostileFiles) -> Invocation:
    kind = draw.choice(["synthetic", "synthetic", "reddit-shaped"])
    size = draw.choice(SIZES) if kind == "synthetic" else draw.choice(["nodes=1e19", "degree=nan", "nodes=-1", "nodes"])
    return [*draw.choice([["run", "--dataset"], ["data"]]), f"{kind}:{size}"]


def _graphs(draw: random.Random, files: HostileFiles) -> Invocation:
    path = draw.choice(files.graphs)
    if path.endswith("graph-columns.npz"):  # to look at it is no mistake
        return ["run", "--dataset", path]
    return [*draw.choice([["run", "--dataset"], ["data"]]), path]


def _configs(draw: random.Random, files: HostileFiles) -> Invocation:
    return ["run", "--config", draw.choice(files.configs)]


def _experiments(draw: random.Random, files: HostileFiles) -> Invocation:
    return ["bench", draw.choice(files.experiments), *draw.choice([[], ["--dry-run"], ["--tune", "--dry-run"]])]


def _names(draw: random.Random, files: HostileFiles) -> Invocation:
    """A run, model, bench or thing of this name, which is not there."""
    word = draw.choice([word for word in WORDS if not word.startswith("-")])
    out = str(files.folder / "out.file")
    return draw.choice(
        [
            ["show", word],
            ["resume", word],
            ["list", word],
            ["data", word],
            ["report", word, "--html"],
            ["audit", word],
            ["predict", word, "--graph", GRAPH, "-o", out],
            ["export", word, "-o", out],
            ["serve", word],
            ["merge", word, word, "-o", out],
            ["forget", word, "--class", word, "--graph", word],
            ["track", word, "--to", "tensorboard", "-o", out],
            ["run", "--dataset", word],
            ["run", "--dataset", GRAPH, "--method", word],
            [word or "frobnicate"],
            ["run", f"--{word}"],
        ]
    )


def _runs(draw: random.Random, files: HostileFiles) -> Invocation:
    """A finished run whose files were changed by hand."""
    name = draw.choice(files.runs)
    command = draw.choice(
        [
            ["show", name],
            ["show", name, "--json"],
            ["resume", name],
            ["report", name, "--html", "-o", str(files.folder / "page.html")],
            ["track", name, "--to", "tensorboard", "-o", str(files.folder / "track")],
        ]
    )
    return [*command, "--runs", str(files.folder / "runs")]


def _places(draw: random.Random, files: HostileFiles) -> Invocation:
    """A folder of runs or of graphs that is none."""
    word = draw.choice([word for word in WORDS if word.strip() and not word.startswith("-")])
    return draw.choice(
        [
            ["show", "some-run", "--runs", word],
            ["resume", "some-run", "--runs", word],
            ["report", "--runs", word],
            ["report", "--html", "--runs", word],
            ["data", "cs", "--convert", "cs.graph", "--data-root", word],
            ["run", "--dataset", "corafull-proxy", "--data-root", word],
            ["audit", "some-run", "--runs", word],
        ]
    )


def _mutated(draw: random.Random, files: HostileFiles) -> Invocation:
    """A graph file with some bytes changed where it matters: in the headers of its arrays."""
    content = bytearray(files.sound_graph)
    begins = [place for place in range(len(content)) if content.startswith(b"\x93NUMPY", place)]
    for begin in begins:
        for _ in range(draw.randint(1, 4)):
            content[begin + draw.randrange(64)] = draw.randrange(256)
    path = files.folder / f"mutated-{draw.randrange(10**9)}.npz"
    path.write_bytes(content)
    return ["run", "--dataset", str(path)]
