"""ipal: exemplar-free continual learning on graphs.

A graph keeps growing, and with it the classes of its nodes. A learner of this package takes one task after the
other (`partial_fit`), predicts over all classes so far (`predict`), and keeps no node it was trained on.
"""

import ast as _ast
import sys as _sys
from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import Any as _Any

from ipal._version import __version__ as __version__

# The stub beside this file says where each name is: imported when first used, so that `ipal --help` needs no torch.
_WHERE = {
    str(one.asname).lstrip("_"): (str(node.module), one.name)
    for node in _ast.parse(_Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, _ast.ImportFrom)
    for one in node.names
}
__all__ = ["__version__", *sorted(_WHERE)]


def __getattr__(name: str) -> _Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ipal' has no attribute '{name}'", name=name, obj=_sys.modules[__name__])
    module, attribute = _WHERE[name]
    return getattr(_import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
