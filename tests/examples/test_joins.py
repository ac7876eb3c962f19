"""The examples that join two streams."""

import pytest

from examples import ad_clicks, enriched_orders, quotes_of_trades
from tests.support.data_files import read_data

PRINTED = read_data("examples/printed.json")


@pytest.mark.parametrize("example", [ad_clicks, enriched_orders])
def test_rows_are_joined_or_told_to_be_without_a_partner(example, capsys):
    example.main()
    assert sorted(capsys.readouterr().out.splitlines()) == PRINTED[example.__name__.rpartition(".")[2]]


def test_quotes_are_those_of_pandas(capsys):
    quotes_of_trades.main()
    assert capsys.readouterr().out.startswith("1000 trades, ")
