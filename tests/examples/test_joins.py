"""The examples that join two streams."""

from examples import ad_clicks, enriched_orders, quotes_of_trades


def test_clicks_are_told_with_their_impressions(capsys):
    ad_clicks.main()
    told = capsys.readouterr().out.splitlines()
    assert sorted(told) == [
        "Row(ad='hats', user=1, shown=120000, clicked=None)",
        "Row(ad='shoes', user=1, shown=0, clicked=180000)",
        "Row(ad='shoes', user=1, shown=480000, clicked=540000)",
        "Row(ad='shoes', user=2, shown=60000, clicked=None)",
    ]


def test_quotes_are_those_of_pandas(capsys):
    quotes_of_trades.main()
    assert capsys.readouterr().out.startswith("1000 trades, ")


def test_orders_wait_for_their_customers(capsys):
    enriched_orders.main()
    assert sorted(capsys.readouterr().out.splitlines()) == ["1 Ann", "2 Bob", "3 was not matched", "4 Anne"]
