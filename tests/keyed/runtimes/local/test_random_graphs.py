"""Random graphs: each operator gives what it gives by itself, over what those before it have given."""

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import DirectoryChangelog
from tests.keyed.runtimes.spark.random_graph import build, expected, graphs, streams


def run(graph, sources, log=lambda name: {}, parallelism=1, *, reverse=False, **options):
    """Run a graph, and return what each output has."""
    outputs = build(graph, streams(sources), log, parallelism=parallelism)
    sinks = {name: keyed.collect_sink() for name in outputs}
    bound = [output.to(sinks[name]) for name, output in outputs.items()]
    keyed.run(*(bound[::-1] if reverse else bound), **options)
    return {name: Counter(map(tuple, sink.values)) for name, sink in sinks.items()}


@given(graph=graphs(), size=st.integers(1, 7), parallelism=st.integers(1, 3))
def test_operators_give_together_what_they_give_one_after_the_other(graph, size, parallelism):
    found = run(graph, graph.sources, parallelism=parallelism, rows_per_batch=size)
    assert found == expected(graph)


@settings(max_examples=10)
@given(graph=graphs(most=3), size=st.integers(1, 5), read=st.integers(0, 8), restored=st.booleans(), data=st.data())
def test_a_graph_goes_on_from_its_checkpoint_or_changelogs(graph, size, read, restored, data):
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        def logs(run, before=None):
            def log(name):
                made = {"changelog": DirectoryChangelog(place / run / name)}
                return made | ({"restore_from": DirectoryChangelog(place / before / name)} if before else {})

            return log

        first = {name: rows[:read] for name, rows in graph.sources.items()}
        parts = [run(graph, first, logs("one"), 2, checkpoint=place / "ck", drain=False, rows_per_batch=size)]
        # The outputs may be named in another order than before.
        options = {"rows_per_batch": size, "drain": True, "reverse": True}
        if restored and any(first.values()):
            other = data.draw(st.integers(1, 3))
            parts.append(run(graph, graph.sources, logs("two", "one"), other, checkpoint=place / "ck2", **options))
        else:
            parts.append(run(graph, graph.sources, logs("one"), 2, checkpoint=place / "ck", **options))
        assert {name: sum((part[name] for part in parts), Counter()) for name in parts[0]} == expected(graph)
