"""Tests. Helpers that assert say as much as tests do when they fail."""

import pytest

pytest.register_assert_rewrite("tests.support", "tests.bad_input.support", "tests.cli.support", "tests.data.support")
