"""The command ``explain``: prints the causes and remedies of an error."""

from __future__ import annotations

import argparse
import inspect
import re
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from keyed import errors
from keyed.cli.command import command
from keyed.errors import DefinitionError, KeyedError

#: The page with a section for each error: in a wheel, and in a clone.
_PAGES = (Path(__file__).with_name("troubleshooting.md"), Path(__file__).parents[2] / "docs" / "troubleshooting.md")
_LINK = re.compile(r"\[([^\]]+)\]\([^)\s]+\)")
#: Domains that are reserved for examples (RFC 2606).
_RESERVED = re.compile(r"//[^/]*\.(example|invalid|test)(/|$)")


def _add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", help="the error's name, such as StateSchemaChanged")


@command("Print the causes and remedies of an error.", _add_explain, "StateSchemaChanged")
def _explain(arguments: argparse.Namespace) -> None:
    codes = [name for name in errors.__all__ if issubclass(getattr(errors, name), KeyedError)]
    known = {name.lower(): name for name in codes}
    code = known.get(arguments.code.lower())
    if code is None:
        near = [known[each] for each in get_close_matches(arguments.code.lower(), list(known), n=3)]
        hint = f"did you mean {' or '.join(near)}?" if near else f"the errors are: {', '.join(codes)}"
        raise DefinitionError(f"explain: {arguments.code!r:.140} is not an error of keyed; {hint}")
    print(f"{code}: {inspect.getdoc(getattr(errors, code))}")
    page = next((page for page in _PAGES if page.exists()), None)
    section = "" if page is None else _section(page.read_text(encoding="utf-8"), code)
    if section:
        print(f"\n{section}")
    if address := _documentation():
        print(f"\n{address}errors/{code}")


def _section(text: str, code: str) -> str:
    """Return the section of an error as plain text; empty if the page has none."""
    section = re.search(rf"^### `{code}`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None:
        return ""
    parts = re.split(r"(^```.*?^```$)", section[1].strip(), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(r"\1", part).replace("**", "") for part in parts)


def _documentation() -> str:
    """Return the address of the documentation, if the package's metadata has a real one."""
    try:
        urls = metadata("keyed-streams").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    address = dict(str(url).split(", ", 1) for url in urls).get("Documentation", "")
    return "" if not address or _RESERVED.search(address) else f"{address.rstrip('/')}/"
