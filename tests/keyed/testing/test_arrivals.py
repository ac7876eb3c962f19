"""Orders of arrival that are searched for, because a sum of floating-point numbers has other digits in them."""

from __future__ import annotations

from keyed.testing.arrivals import arrivals_with_other_sums
from keyed.testing.function_options import Record
from keyed.testing.scripts import ProcessingTime, Rows


def arrivals(*steps, delay=0):
    return arrivals_with_other_sums(steps, delay=delay, sides=[1], key_of=lambda row: row.value["user"])


def rows(*amounts, user="ann", times=(0, 0, 0)):
    return Rows([Record({"user": user, "amount": n}, time) for n, time in zip(amounts, times, strict=True)])


def total(steps, share=0.1):
    found = 0.0
    for step in steps:
        for row in step.rows:
            found += row.value["amount"] * share
    return found


def test_an_order_in_which_a_sum_of_tenths_has_other_digits_is_found():
    found = arrivals(rows(1, 2, 3))
    assert any(total(each) != total([rows(1, 2, 3)]) for each in found)
    assert all(sorted(row.value["amount"] for row in each[0].rows) == [1, 2, 3] for each in found)


def test_each_sum_that_can_change_does_in_one_of_the_orders():
    given = rows(1, 2, 4, 7, 9, times=(0,) * 5)
    orders = arrivals(given)
    for share in (0.1, 1 / 3):
        assert any(total(each, share) != total([given], share) for each in orders)
    assert arrivals(rows(1, 2, 4)) != []
    assert total(arrivals(rows(1, 2, 4))[0], 1.0) == 7.0


def test_sums_are_those_of_one_key_and_one_column():
    assert arrivals(rows(1, 2, 3), rows(0, 0, 0, user="bob"))
    apart = [Record({"user": user, "amount": n}, 0) for n, user in enumerate(("ann", "bob", "cid"), 1)]
    assert arrivals(Rows(apart)) == []
    assert arrivals(Rows([Record({"user": "ann", str(n): n}, 0) for n in (1, 2, 3)])) == []


def test_rows_of_other_times_move_within_the_delay_only():
    steps = rows(1, 2, 3, 4, 5, times=(0, 1, 2, 3, 4))
    assert arrivals(steps) == []
    assert arrivals(steps, delay=100)
    assert arrivals(rows(1, 2, 3, times=(None, None, None))) == []


def test_no_row_passes_another_step():
    one, two, three = (Rows([Record({"user": "ann", "amount": n}, 0)]) for n in (1, 2, 3))
    assert arrivals(one, two, three)
    assert arrivals(one, ProcessingTime(1), two, ProcessingTime(2), three) == []


def test_numbers_that_no_sum_can_hold_are_passed_over():
    cyclic: dict[str, object] = {"user": "ann"}
    cyclic["self"] = cyclic
    values = [{"user": "ann", "amount": 10**400}, {"user": "ann", "amount": True}, cyclic]
    assert arrivals(Rows([Record(value, 0) for value in values])) == []
