"""Streams and outputs as descriptions: what they refuse, and what they do not do by being looked at."""

import inspect

import attrs
import pytest

import keyed
from keyed.job.options import Options
from keyed.job.streams import Output
from tests.support.jobs import Pass


def count(source=(), **options):
    return keyed.stream(source).key_by("k").process(Pass(), **options)


@pytest.mark.parametrize("name", [3, "", "a b", b"a"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(keyed.errors.DefinitionError, match=r"operator name .* must match"):
        count(name=name)


def test_the_names_of_the_dataframe_lead_to_df():
    output = count()
    for name in ("writeStream", "select", "columns_of"):
        with pytest.raises(AttributeError, match=rf"is \.df: output\.df\.{name}"):
            getattr(output, name)
    assert not hasattr(output, "isStreaming")
    assert not hasattr(output, "_private")


@pytest.mark.smoke
def test_looking_at_an_output_on_spark_builds_nothing(spark, tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    output = count(spark.range(1).selectExpr("id AS k"), changelog=log, output="k bigint")
    assert not hasattr(output, "writeStream")
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(("option", "value"), [("trigger", "1 second"), ("query_name", "q")])
def test_options_of_spark_are_refused_by_the_local_runtime(option, value):
    with pytest.raises(keyed.errors.DefinitionError, match=rf"{option}={value!r} is for Spark"):
        count().start(keyed.collect_sink(), **{option: value})


@pytest.mark.parametrize("call", [keyed.run, keyed.start, Output.run, Output.start])
def test_every_option_is_a_keyword(call):
    keywords = {
        name: parameter.default
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    options = {field.name: field.default for field in attrs.fields(Options)}
    if call.__name__ == "run":
        del options["trigger"]
    assert keywords == options


def test_what_is_no_option_is_refused():
    with pytest.raises(
        TypeError, match=r"Output.run: 'check_point' .*did you mean 'checkpoint'.*; the options are sink, check"
    ):
        count().run(check_point="x")
    with pytest.raises(TypeError, match="'trigger' is not an option"):
        count().run(trigger="1 second")
