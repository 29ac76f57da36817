"""Processes of a bench that are at work at once."""

import multiprocessing

import pytest

from tests.processes import loaded_context


@pytest.fixture
def loaded_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked where torch is loaded, in place of started from nothing, as other tests have them."""
    context = loaded_context()
    monkeypatch.setattr(multiprocessing, "get_context", lambda method=None: context)
