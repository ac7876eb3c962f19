"""The example whose rules change while it runs."""

from examples import fraud_rules


def test_rules_change_while_the_job_runs(capsys):
    fraud_rules.main()
    first, second, *third, _, _ = capsys.readouterr().out.splitlines()
    # The limit of the first batch is above both payments; the next one finds an earlier payment too.
    assert [first, second] == ["c2 large 900.0", "c1 large 600.0"]
    assert sorted(third) == ["c2 huge 900.0", "c3 huge 800.0"]


def test_a_pattern_finds_cards_that_were_tried_out(capsys):
    fraud_rules.main()
    assert capsys.readouterr().out.splitlines()[-2:] == ["c1 probed 600.0", "c3 probed 800.0"]
