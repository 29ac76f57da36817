"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("ipal")
except PackageNotFoundError:  # run from a checkout that was not installed
    __version__ = "0"
