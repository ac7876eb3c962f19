"""Each view of `examples.views` has the same rows in SQL and in Python."""

import pytest

from examples.views import VIEWS


@pytest.mark.parametrize("name", VIEWS)
def test_sql_and_python_have_equal_rows(name):
    found = VIEWS[name].by_sql()
    assert found
    assert found == VIEWS[name].by_python()
