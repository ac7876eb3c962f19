"""Migrations that a class declares: at a restore, and in place on a checkpoint."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed import KeyedProcessFunction, ListState, MapState, ReducingState, StateMigration, ValueState
from keyed.changelog import DirectoryChangelog
from keyed.errors import CorruptionError, DefinitionError, StateSchemaChanged, UserFunctionError
from keyed.recovery import read_changelog, verify
from keyed.testing import KeyedTestHarness, MemoryChangelog
from keyed.vectorized import TableState, VectorizedFunction
from tests.support.tables import poll_tables


def of_key(element: Any) -> Any:
    return element[0]


def add(a, b):
    return a + b


KINDS: dict[str, Any] = {
    "value": (ValueState, lambda state, n: state.update(n), lambda state: state.value()),
    "list": (ListState, lambda state, n: state.add(n), list),
    "map": (partial(MapState, str), lambda state, n: state.put(f"m{n % 3:.0f}", n), lambda state: dict(state.items())),
    "reducing": (partial(ReducingState, add), lambda state, n: state.add(n), lambda state: state.get()),
}


def function_of(
    states: Mapping[str, tuple[str, type]], migration: StateMigration | None = None
) -> KeyedProcessFunction:
    """A function with states by name, with kind and type: it shows all of them, and then writes a number to each."""

    def process_element(self, value, ctx):
        yield value[0], {name: KINDS[kind][2](getattr(self, name)) for name, (kind, _) in states.items()}
        if self.fails:
            raise LookupError("it fails")
        for name, (kind, type_) in states.items():
            KINDS[kind][1](getattr(self, name), type_(value[1]))

    members = {name: KINDS[kind][0](type_) for name, (kind, type_) in states.items()}
    body = {**members, "process_element": process_element, "migration": migration, "fails": False}
    return type("Generated", (KeyedProcessFunction,), body)()


class Schemas:
    """What some states become: kept, dropped, renamed, converted to float, or converted under another name."""

    def __init__(self, fates: list[tuple[str, str]]) -> None:
        self.before: dict[str, tuple[str, type]] = {f"s{i}": (kind, int) for i, (kind, _) in enumerate(fates)}
        self.after: dict[str, tuple[str, type]] = {"new": ("value", int)}
        self.names: dict[str, str] = {}
        renamed, dropped, converted = {}, [], {}
        for (name, (kind, _)), (_, fate) in zip(self.before.items(), fates, strict=True):
            new = f"{name}_new" if "rename" in fate else name
            if new != name:
                renamed[name] = new
            if fate == "drop":
                dropped.append(name)
                continue
            type_ = float if "convert" in fate else int
            if type_ is float:
                converted[new] = float
            self.names[new] = name
            self.after[new] = kind, type_
        self.migration = StateMigration(renamed=renamed, dropped=dropped, converted=converted)

    def model(self, elements: list[tuple[str, int]]) -> dict[str, dict[str, Any]]:
        """What the states of each key hold after the migration."""
        shown: dict[str, dict[str, Any]] = defaultdict(dict)
        for name, (kind, type_) in self.after.items():
            for key, number in elements if name in self.names else ():
                shown[key][name] = shown_after(kind, shown[key].get(name), type_(number))
        return shown


def shown_after(kind: str, old: Any, number: Any) -> Any:
    if kind == "list":
        return [*(old or []), number]
    if kind == "map":
        return dict(sorted({**(old or {}), f"m{number % 3:.0f}": number}.items()))
    return old + number if kind == "reducing" and old is not None else number


FATES = ("keep", "drop", "rename", "convert", "rename and convert")
ELEMENTS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-99, 99)), min_size=1, max_size=8)


def shown(harness: KeyedTestHarness, elements: list[tuple[str, int]]) -> list[str]:
    for element in elements:
        harness.process(element)
    return [repr(record.value) for record in harness.take_output()]


@given(
    st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.sampled_from(FATES)), min_size=1, max_size=5),
    ELEMENTS,
    ELEMENTS,
    st.sampled_from(["memory", "rocksdb", "lmdb"]),
    st.integers(1, 3),
)
def test_random_schemas_are_migrated_in_place_and_at_a_restore_alike(fates, before, after, store, parallelism):
    schemas = Schemas(fates)
    model = schemas.model(before)
    expected = []
    for key, number in after:
        empty: dict[str, Any] = {"value": None, "list": [], "map": {}, "reducing": None}
        values = {name: model[key].get(name, empty[kind]) for name, (kind, _) in schemas.after.items()}
        expected.append(repr((key, values)))
        model[key] |= {n: shown_after(k, model[key].get(n), t(number)) for n, (k, t) in schemas.after.items()}
    old, in_place, restored = (MemoryChangelog() for _ in range(3))
    changed = function_of(schemas.after, schemas.migration)
    for log in (old, in_place):
        harness = KeyedTestHarness(
            function_of(schemas.before), key=of_key, parallelism=parallelism, changelog=log, store=store
        )
        shown(harness, before)
        if log is in_place:
            # What fails has migrated nothing, whatever the local store has done.
            failing = function_of(schemas.after, schemas.migration)
            type(failing).fails = True  # type: ignore[attr-defined]
            harness.crash_and_recover(failing)
            with pytest.raises(UserFunctionError, match="it fails"):
                shown(harness, after)
            type(failing).fails = False  # type: ignore[attr-defined]
            assert shown(harness, after) == expected
            harness.crash_and_recover(changed)
            assert len(shown(harness, after)) == len(after)
        harness.close()
    options: dict[str, Any] = {"key": of_key, "changelog": restored, "restore_from": old}
    with KeyedTestHarness(changed, parallelism=parallelism % 3 + 1, **options) as harness:
        assert shown(harness, after) == expected
        shown(harness, after)
    assert not [found.problem for log in (in_place, restored) for found in verify(log) if found.problem]
    # What was migrated in place is what was migrated at the restore.
    seen = []
    for log in (in_place, restored):
        with KeyedTestHarness(changed, key=of_key, restore_from=log) as harness:
            seen.append([shown(harness, [(key, 0) for key in "abcd"]), harness.state_entries()])
    assert seen[0] == seen[1]


class Counting(KeyedProcessFunction):
    total = ValueState(int, default=0)
    last = ValueState(str)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.v)
        self.last.update("x")
        ctx.timer_service().register_event_time_timer(value.t + 50)
        yield value.k, float(self.total.value())

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), -float(self.total.value())


class Averaging(Counting):
    """The same with a float, and without the last text."""

    total = ValueState(float, default=0.0)
    last = None  # type: ignore[assignment]
    migration = StateMigration(dropped=["last"], converted={"total": float})
    killed = False

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.v)
        if self.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.timer_service().register_event_time_timer(value.t + 50)
        yield value.k, self.total.value()


ROWS = [{"k": f"k{i % 7}", "t": i * 10, "v": i} for i in range(70)]


def run_job(at: Any, function: KeyedProcessFunction, count: int, store: Any) -> list[Any]:
    stream = keyed.stream(ROWS[:count], timestamp="t").key_by("k")
    log = DirectoryChangelog(at / "log")
    output = stream.process(function, "k string, n double", name="job", parallelism=2, changelog=log, store=store)
    result = output.run(checkpoint=at / "ck", local_dir=at / "stores", rows_per_batch=10, drain=False)
    return [tuple(row) for row in result.values]


@pytest.mark.parametrize("store", ["memory", "rocksdb", "lmdb"])
def test_a_job_that_is_killed_while_it_migrates_goes_on_as_one_that_was_never_changed(tmp_path, store):
    unchanged = run_job(tmp_path / "unchanged", Counting(), 30, store)
    unchanged += run_job(tmp_path / "unchanged", Counting(), 60, store)
    before = run_job(tmp_path / "job", Counting(), 30, store)
    program = (
        "import sys, pathlib; from tests.keyed.recovery import test_class_migrations as m; m.Averaging.killed = True\n"
        "m.run_job(pathlib.Path(sys.argv[1]), m.Averaging(), 60, sys.argv[2])"
    )
    killed = subprocess.run([sys.executable, "-c", program, tmp_path / "job", store], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    after = run_job(tmp_path / "job", Averaging(), 60, store)
    assert before + after == unchanged
    for place in (tmp_path / "job" / "ck", DirectoryChangelog(tmp_path / "job" / "log")):
        assert [found.problem for found in verify(place)] == ["", ""]
    # The class of before does not fit any more.
    with pytest.raises(StateSchemaChanged, match="float became int"):
        run_job(tmp_path / "job", Counting(), 70, store)


def test_tables_and_readers_follow_a_migration_in_place(tmp_path):
    run_job(tmp_path, Counting(), 30, "memory")
    log = DirectoryChangelog(tmp_path / "log")
    with poll_tables(log, tmp_path / "tables") as tables:
        run_job(tmp_path, Averaging(), 60, "memory")
        tables.poll()
        totals: dict[str, float] = defaultdict(float)
        for row in ROWS[:60]:
            totals[str(row["k"])] += int(row["v"])  # type: ignore[call-overload]
        assert repr(sorted((row.key, row.value) for row in tables["total"].scan())) == repr(sorted(totals.items()))
    changes = [change for change in read_changelog(log, "total") if change.commit.batch >= 3]
    assert changes
    assert all(type(change.value) is float for change in changes)


@attrs.frozen
class Wide:
    amount: float
    currency: str


@attrs.frozen
class Narrow:
    amount: int


def test_fields_are_added_in_place_and_wider_ones_converted():
    class Before(KeyedProcessFunction):
        order = ValueState(Narrow)

        def process_element(self, value, ctx):
            self.order.update(Narrow(value[1]))

    class Named(KeyedProcessFunction):
        order = ValueState(Wide)
        migration = StateMigration(added={"order": {"currency": "EUR"}})

        def process_element(self, value, ctx):
            yield self.order.value()

    @attrs.frozen
    class Floating:
        amount: float

    class Converted(Named):
        order = ValueState(Floating)
        migration = StateMigration(converted={"order": Floating})

    harness = KeyedTestHarness(Before(), key=of_key)
    harness.process(("a", 3))
    harness.crash_and_recover(Converted())
    for _ in range(2):
        harness.process(("a", 0))
        assert [record.value for record in harness.take_output()] == [Floating(3.0)]
    harness.crash_and_recover(Named())
    for _ in range(2):
        harness.process(("a", 0))
        assert [record.value for record in harness.take_output()] == [Wide(3.0, "EUR")]


CHANGED = [
    (int, float, 2**53 + 1, None),
    (float, int, 0.5, None),
    (float, int, float("nan"), None),
    (float, int, 3.0, "3"),
]


@pytest.mark.parametrize(("old", "new", "number", "converted"), CHANGED)
def test_a_value_that_would_change_is_refused_in_place_and_nothing_is_changed(old, new, number, converted):
    harness = KeyedTestHarness(function_of({"total": ("value", old)}), key=of_key)
    harness.process(("a", number))
    snapshot = harness.snapshot()
    harness.crash_and_recover(function_of({"total": ("value", new)}, StateMigration(converted={"total": new})))
    if converted:
        assert shown(harness, [("a", 1)])[-1] == f"('a', {{'total': {converted}}})"
        return
    conversion = rf"value state 'total' of key 'a': {old.__name__} as {new.__name__}: .*(would change|is not a int)"
    with pytest.raises(StateSchemaChanged, match=conversion):
        harness.process(("b", 1))
    assert harness.snapshot() == snapshot


REMEDIES: list[tuple[Any, Any, str]] = [
    (
        {"n": ("value", int)},
        {"n": ("value", float)},
        r"conversion, migration = keyed.StateMigration\(converted={'n': float}",
    ),
    ({"n": ("list", Narrow)}, {"n": ("list", Wide)}, r"new fields, .*StateMigration\(added={'n': {'currency': ...}}"),
    ({"n": ("value", int)}, {}, r"Declare it again; to drop its values, declare .*StateMigration\(dropped=\['n'\]\)"),
    (
        {"n": ("value", int)},
        {"m": ("value", int)},
        r"'n' is gone, and 'm' is new .*same type: .* renamed, .*Migration\(renamed={'n': 'm'}\) on the class",
    ),
    ({"n": ("value", int)}, {"n": ("value", str)}, r"under another name, and this one as it was or .*dropped=\['n'\]"),
    ({"n": ("value", int)}, {"n": ("list", int)}, r"under another name, and this one as it was or .*dropped=\['n'\]"),
]


@pytest.mark.parametrize(("before", "after", "remedy"), REMEDIES, ids=[remedy[-24:] for *_, remedy in REMEDIES])
def test_without_the_migration_the_change_is_refused_in_place_and_the_declaration_is_named(before, after, remedy):
    kept = {"kept": ("value", int)}
    harness = KeyedTestHarness(function_of(kept | before), key=of_key)
    harness.process(("a", 1))
    harness.crash_and_recover(function_of(kept | after))
    with pytest.raises(StateSchemaChanged, match=remedy):
        harness.process(("b", 1))


@pytest.mark.parametrize(
    ("migration", "match"),
    [
        (
            StateMigration(converted={"totl": float}),
            r"converted= names the state 'totl', which the class does not .* total",
        ),
        (StateMigration(added={"totl": {"x": 1}}), "added= names the state 'totl'"),
        (StateMigration(renamed={"sum": "totl"}), "renamed= names the state 'totl'"),
        (StateMigration(dropped=["total"]), "drops or renames the state 'total', which the class declares"),
        (StateMigration(renamed={"total": "total"}), "drops or renames the state 'total'"),
    ],
)
def test_a_migration_that_does_not_fit_the_class_is_refused_before_the_first_row(migration, match):
    with pytest.raises(DefinitionError, match=match):
        KeyedTestHarness(function_of({"total": ("value", int)}, migration), key=of_key)

    class Opens(KeyedProcessFunction):
        def open(self, context):
            self.total = context.get_state(ValueState(int, name="total"))

        def process_element(self, value, ctx):
            raise AssertionError

    Opens.migration = migration
    with pytest.raises(DefinitionError, match=match):
        KeyedTestHarness(Opens(), key=of_key).process(("a", 1))


@pytest.mark.parametrize("store", ["memory", "rocksdb", "lmdb"])
def test_a_table_is_dropped_in_place_and_at_a_restore_and_another_one_declared_later(tmp_path, store):
    pa = pytest.importorskip("pyarrow")

    class Before(VectorizedFunction):
        others = TableState("k string, n bigint", key="k")
        counts = TableState("k string, n bigint", key="k")

        def process_batch(self, table, ctx):
            rows = pa.table({"k": table["k"], "n": pa.repeat(1, len(table))})
            for state in (self.counts, self.others):
                state.merge(rows, {"n": "sum"})

    class Without(Before):
        counts = None  # type: ignore[assignment]
        migration = StateMigration(dropped=["counts"])

        def process_batch(self, table, ctx):
            if self.fails:
                raise LookupError("it fails")

        fails = False

    class Later(Without):
        # It has another layout than the dropped one, whose id it must not get.
        texts = TableState("k string, text string", key="k")

        def process_batch(self, table, ctx):
            self.texts.upsert(pa.table({"k": table["k"], "text": pa.repeat("x", len(table))}))

    log = DirectoryChangelog(tmp_path / "log")

    def run(function, count, at="ck", **options):
        rows = keyed.stream([{"k": key} for key in "abc" * 20][:count]).key_by("k")
        job = rows.process(function, "k string", name="job", parallelism=2, store=store, **options)
        return job.run(checkpoint=tmp_path / at, local_dir=tmp_path / f"{at} stores", drain=False).metrics["job"]

    assert run(Before(), 9, changelog=log)["live_entries"] == 6
    failing = Without()
    failing.fails = True
    with pytest.raises(UserFunctionError, match="it fails"):
        run(failing, 12, changelog=log)
    assert run(Without(), 12, changelog=log)["live_entries"] == 3
    assert run(Without(), 15, changelog=log)["live_entries"] == 3
    assert run(Later(), 18, changelog=log)["live_entries"] == 6
    shutil.rmtree(tmp_path / "ck stores", ignore_errors=True)
    assert run(Later(), 21, changelog=log)["live_entries"] == 6
    for place in (tmp_path / "ck", log):
        assert [found.problem for found in verify(place)] == ["", ""]
    with poll_tables(log, tmp_path / "tables") as tables:
        assert sorted(row.value["text"] for row in tables["texts"].scan()) == ["x"] * 3
        assert sorted(row.value["n"] for row in tables["others"].scan()) == [3] * 3
    assert run(Without(), 12, "new", restore_from=keyed.RestorePoint(log, as_of=0))["live_entries"] == 3


def test_the_id_of_a_dropped_state_is_not_used_again(tmp_path):
    run_job(tmp_path, Counting(), 30, "memory")
    run_job(tmp_path, Averaging(), 40, "memory")

    class Named(Averaging):
        names = ValueState(int)

        def process_element(self, value, ctx):
            self.names.update(7)
            yield from super().process_element(value, ctx)

    run_job(tmp_path, Named(), 60, "memory")
    log = DirectoryChangelog(tmp_path / "log")
    with poll_tables(log, tmp_path / "tables") as tables:
        assert {row.value for row in tables["names"].scan()} == {7}
    assert {change.value for change in read_changelog(log, "last")} == {"x", None}
    assert [found.problem for found in verify(tmp_path / "ck")] == ["", ""]


def test_a_migration_of_another_type_is_refused():
    function = function_of({"total": ("value", int)}, {"dropped": ["last"]})  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=r"Generated.migration=.*give a keyed.StateMigration"):
        KeyedTestHarness(function, key=of_key)


def test_the_content_of_dropped_and_converted_states_is_checked_at_a_restore():
    log = MemoryChangelog()
    before = function_of({"total": ("value", int), "last": ("list", int)})
    with KeyedTestHarness(before, key=of_key, parallelism=2, changelog=log) as harness:
        shown(harness, [(key, number) for key in "abcd" for number in range(3)])
    after = function_of({"total": ("value", float)}, StateMigration(dropped=["last"], converted={"total": float}))
    for group in range(2):
        commits = log._groups[group]
        marker, blocks = commits[-1]
        commits[-1] = attrs.evolve(marker, hash=f"{int(marker.hash, 16) ^ 1:032x}"), blocks
        with pytest.raises(CorruptionError, match="their hash differs"):
            KeyedTestHarness(after, key=of_key, parallelism=3, restore_from=log)
        commits[-1] = marker, blocks
    KeyedTestHarness(after, key=of_key, parallelism=3, restore_from=log).close()
