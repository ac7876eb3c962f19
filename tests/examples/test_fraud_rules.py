"""The example whose rules change while it runs."""

from examples import fraud_rules


def test_rules_change_while_the_job_runs(capsys):
    fraud_rules.main()
    first, second, *third = capsys.readouterr().out.splitlines()
    # The limit of the first batch is above both payments; the next one finds an earlier payment too.
    assert [first, second] == ["c2 large 900.0", "c1 large 600.0"]
    assert sorted(third) == ["c2 huge 900.0", "c3 huge 800.0"]
