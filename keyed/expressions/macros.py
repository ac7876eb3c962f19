"""ksqlDB's names of functions that DuckDB lacks: a macro each. What no line expresses is not here.

DuckDB's memory limit does not count values, so functions whose result is as long as a number says have a limit here: a
row beyond it is a bad row.
"""

from __future__ import annotations

_CHARACTERS = "1,000,000 characters"
_ELEMENTS = "100,000 elements"


def _with_pattern(expression: str) -> str:
    """Return an expression that fails for a pattern ``p`` without %, which would be its own value."""
    reason = "error('the pattern ' || p || ' has no %, as in %Y-%m-%d')"
    return f"CASE WHEN contains(p, '%') THEN {expression} ELSE {reason} END"


def _limited(*forms: str, size: str, most: str) -> str:
    """Return the forms of a function of DuckDB, each ``parameters: call``, that fail beyond a size.

    The argument ``n`` fails, and not the call: of constants, DuckDB would compute the call in any case.
    """
    reason = f"error('the result has more than {most}')"
    checked = f"CASE WHEN {size} > {most.partition(' ')[0].replace(',', '')} THEN {reason} ELSE n END"
    parts = (form.partition(": ") for form in forms)
    return ", ".join(f"({head}) AS system.main.{call.replace('#', checked)}" for head, _, call in parts)


def _series(name: str) -> str:
    """Return the forms of a function that lists numbers or times."""
    times = "(epoch(n) - epoch(a)) / (epoch(a + s) - epoch(a))"
    return ", ".join(
        (
            _limited(f"n BIGINT: {name}(#)", size="n", most=_ELEMENTS),
            _limited(f"a BIGINT, n BIGINT: {name}(a, #)", size="n::HUGEINT - a", most=_ELEMENTS),
            _limited(f"a BIGINT, n BIGINT, s BIGINT: {name}(a, #, s)", size="(n::DOUBLE - a) / s", most=_ELEMENTS),
            _limited(f"a TIMESTAMP, n TIMESTAMP, s INTERVAL: {name}(a, #, s)", size=times, most=_ELEMENTS),
        )
    )


def _formatted(name: str, text: str, field: str, dynamic: str) -> str:
    """Return the forms of a function that formats up to 20 values: the limit is of the sum of the fields' widths.

    Args:
        name: The function.
        text: The format ``n`` without escaped signs.
        field: The regular expression of a field in it.
        dynamic: That of a field whose width is a value: it is refused.
    """
    values = [", ".join(f"v{place}" for place in range(count)) for count in range(1, 21)]
    forms = ["n: {0}(#)", *(f"n, {each}: {{0}}(#, {each})" for each in values)]
    numbers = f"regexp_extract_all(array_to_string(regexp_extract_all({text}, '{field}'), ' '), '[0-9]+')"
    widths = f"list_sum(list_transform({numbers}, lambda w: coalesce(try_cast(w AS DOUBLE), 'inf'::DOUBLE)))"
    refused = "error('a width is a number in the format, and not a value')"
    size = f"(CASE WHEN regexp_matches({text}, '{dynamic}') THEN {refused} ELSE {widths} END)"
    return _limited(*(each.format(name) for each in forms), size=size, most=_CHARACTERS)


#: The definitions of functions of DuckDB with a limit.
LIMITED = {
    "repeat": _limited("x, n: repeat(x, #)", size="n * length(x::VARCHAR)", most=_CHARACTERS),
    **{name: _limited(f"x, n, p: {name}(x, #, p)", size="n", most=_CHARACTERS) for name in ("lpad", "rpad")},
    "bitstring": _limited("x, n: bitstring(x, #)", size="n", most=_CHARACTERS),
    **{
        name: _limited(f"x, n: {name}(x, #)", f"x, n, v: {name}(x, #, v)", size="n", most=_ELEMENTS)
        for name in ("list_resize", "array_resize")
    },
    **{name: _series(name) for name in ("range", "generate_series")},
    "printf": _formatted("printf", "replace(n, '%%', '')", "%[^a-zA-Z%]*", r"%[^a-zA-Z%]*\*"),
    "format": _formatted("format", "replace(replace(n, '{{', ''), '}}', '')", r"\{[^{}]*", r"\{[^{}]*\{"),
}
#: Macros whose arguments after the first are a list, so that there may be any number.
OVER_LISTS = {"ELT", "FIELD"}
#: The definition of each macro, by its name with its parameters.
MACROS = {
    "len(x)": "length(x)",
    "initcap(x)": "array_to_string(list_transform(string_split(x, ' '), lambda w: upper(w[1:1]) || lower(w[2:])), ' ')",
    "split(x, d)": "CASE WHEN d = '' THEN string_split_regex(x, '') ELSE string_split(x, d) END",
    "split_to_map(x, e, k)": (
        "map_from_entries(list_transform(list_filter(string_split(x, e), lambda p: contains(p, k)), "
        "lambda p: struct_pack(k := string_split(p, k)[1], v := string_split(p, k)[2])))"
    ),
    "geo_distance(a, b, c, d)": (
        "2 * 6371.0 * asin(sqrt(pow(sin(radians(c - a) / 2), 2) "
        "+ cos(radians(a)) * cos(radians(c)) * pow(sin(radians(d - b) / 2), 2)))"
    ),
    "as_value(x)": "x",
    "extractjsonfield(x, p)": "json_extract_string(x, p)",
    "is_json_string(x)": "json_valid(x)",
    "json_array_contains(x, v)": "list_contains(from_json(x, '[\"VARCHAR\"]'), v::VARCHAR)",
    "json_records(x)": "from_json(x, '\"MAP(VARCHAR, VARCHAR)\"')",
    "json_items(x)": "list_transform(from_json(x, '[\"JSON\"]'), lambda e: e::VARCHAR)",
    "from_unixtime(x)": "epoch_ms(x::BIGINT)",
    "unix_timestamp(x)": "epoch_ms(x)",
    "unix_date(x)": "date_diff('day', DATE '1970-01-01', x)",
    "from_days(x)": "DATE '1970-01-01' + x::INTEGER",
    "stringtotimestamp(x, p)": "epoch_ms(strptime(x, p))",
    "parse_timestamp(x, p)": "strptime(x, p)",
    "parse_date(x, p)": "strptime(x, p)::DATE",
    "format_timestamp(x, p)": _with_pattern("strftime(x::TIMESTAMP, p)"),
    "format_date(x, p)": _with_pattern("strftime(x, p)"),
    "timestamptostring(x, p)": _with_pattern("strftime(epoch_ms(x::BIGINT), p)"),
    "to_json_string(x)": "coalesce(to_json(x)::VARCHAR, 'null')",
    "slice(x, first, last)": "x[first:last]",
    "array_length(x)": "length(x)",
    "array_contains(x, v)": "list_contains(x, v)",
    "array_join(x, d)": "array_to_string(x, d)",
    "array_max(x)": "list_max(x)",
    "array_min(x)": "list_min(x)",
    "array_remove(x, v)": "list_filter(x, lambda e: e IS DISTINCT FROM v)",
    "array_union(x, y)": "list_distinct(list_concat(x, y))",
    "array_except(x, y)": "list_filter(list_distinct(x), lambda e: NOT list_contains(y, e))",
    "entries(m, s)": (
        "list_transform(CASE WHEN s THEN list_sort(map_entries(m)) ELSE map_entries(m) END, "
        "lambda e: struct_pack(K := e.key, V := e.value))"
    ),
    "as_map(k, v)": "map(k, v)",
    "map_union(a, b)": "map_concat(a, b)",
    "elt(i, choices)": "choices[i]",
    "field(x, choices)": "coalesce(list_position(choices, x), 0)",
    "mask(x)": (
        "regexp_replace(regexp_replace(regexp_replace(regexp_replace(x, '[^\\p{Lu}\\p{Ll}\\p{Nd}]', '-', 'g'), "
        "'\\p{Lu}', 'X', 'g'), '\\p{Ll}', 'x', 'g'), '\\p{Nd}', 'n', 'g')"
    ),
    "url_decode_param(x)": "url_decode(replace(x, '+', ' '))",
    "url_encode_param(x)": "replace(url_encode(x), '%20', '+')",
}
