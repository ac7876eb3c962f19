"""The shape of the project as a test: who may import whom, what is public, what no module does.

Each rule is a function from a module's source to the list of what breaks it. The rules are run over the whole project,
and over small sources that break them, so that a rule that has stopped to see anything is noticed.
"""

import ast
import gc
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.support.data_files import read_data

ROOT = Path(__file__).resolve().parent.parent
# In a clone `keyed/windows` is a link to the folder `windows`.
LIBRARY = sorted({path.resolve() for folder in ("keyed", "windows") for path in ROOT.glob(f"{folder}/**/*.py")})
ALL_PYTHON = sorted([*LIBRARY, *ROOT.glob("examples/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob(".ci/*.py")])

#: The rooms of the library, from the ground up: a room imports those below it, and of these not the ones of `APART`.
ROOMS = (
    *("errors", "base", "codec", "arrow", "content", "formats", "expressions", "kafka", "changelog", "destinations"),
    *("topics", "job"),
    *("table_state", "engine", "stores", "recovery", "tables", "runtimes"),
)
#: What a room does without, although it is below.
APART = {
    "arrow": {"content"},
    "formats": {"content"},
    "kafka": {"arrow", "codec", "content"},
    "changelog": {"arrow", "formats"},
    "topics": {"changelog"},
    "destinations": {"content"},
    "table_state": {"changelog", "formats", "kafka"},
    "engine": {"formats", "kafka"},
    "stores": {"arrow", "changelog", "formats", "kafka"},
    "recovery": {"arrow", "formats", "kafka"},
    "tables": {"engine", "table_state"},
    "job": {"arrow", "content"},
}
#: What `keyed` itself fetches when it is first used.
ON_DEMAND = {"errors", "extending", "joins", "patterns", "postgres", "recovery", "sql", "tables", "testing", "windows"}
MAY_IMPORT = {
    **{room: {*ROOMS[:number]} - APART.get(room, set()) for number, room in enumerate(ROOMS)},
    # Doors, which define nothing.
    "keyed": {*ROOMS, *ON_DEMAND, "metrics", "vectorized"},
    "extending": {"base", "codec", "arrow", "changelog", "destinations", "job"},
    "metrics": {"job"},
    "vectorized": {"job"},
    # PyFlink has keyed functions and windows under one roof. Nothing imports this module, so there is no circle.
    "pyflink": {"errors", "base", "job", "keyed", "extending", "windows"},
    "pytest_plugin": {"keyed", "testing"},
    # As a third party could write them: see DOORS.
    "joins": set(),
    "patterns": set(),
    "postgres": set(),
    "windows": set(),
    "sql": {
        *("errors", "base", "formats", "expressions", "kafka", "topics", "job"),
        *("keyed", "extending", "vectorized", "joins", "patterns", "windows"),
    },
    "testing": {*ROOMS, "keyed", "vectorized"} - {"formats"},
    "cli": {*ROOMS, "keyed", "metrics", "sql", "testing"} - {"arrow", "table_state"},
}
#: Modules that users import by name stand above their room.
STANDING_ALONE = {"rows": "base"}
# What is imported by name, on demand: public names that need the engine, and the runtime that runs a chain.
IMPORTS_BY_NAME = {
    "keyed": "keyed.",
    "keyed.extending": "keyed.arrow.",
    "keyed.recovery": "keyed.runtimes.",
    "keyed.job.options": "keyed.runtimes.",
    "keyed.job.streams": "keyed.runtimes.",
    "keyed.tables.entries": "keyed.windows.",
    "keyed.tables.push_worker": "keyed.sql.",
    "keyed.testing": "keyed.testing.",
    "keyed.topics": "keyed.runtimes.",
    "keyed.windows.clone_name": "keyed.",
}
# Modules that are read by name and are no packages, so that an `__all__` says what of them is public.
PUBLIC_MODULES = {
    f"keyed.{name}" for name in ("errors", "extending", "metrics", "postgres", "pyflink", "topics", "vectorized")
}
# The doors that `windows`, `joins` and `patterns` use, and nothing else of `keyed`: they prove that the API is enough
# for others.
DOORS = {"keyed", "keyed.errors", "keyed.extending", "keyed.vectorized"}
#: The modules of the contract for operators that run row by row or over whole columns, which `keyed.extending` names.
BESIDE_DOORS = {"keyed.codec.tagged", "keyed.expressions.row_conditions", "keyed.job.execution_path"}
# Imported for type checkers alone: what is fetched when it is first used.
TYPED = {
    "keyed.job.options": "keyed.tables",
    "keyed.recovery": "keyed.runtimes.",
    "keyed.job.results": "keyed.tables",
}

HEAVY = (
    *("confluent_kafka", "deltalake", "lmdb", "numpy", "obstore", "pandas", "pyarrow", "pyiceberg", "pyspark"),
    "rocksdict",
)
FORBIDDEN_MODULES = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
FORBIDDEN_CALLS = {"__import__", "compile", "eval", "exec", "yaml.load", "yaml.unsafe_load"}
# Spark ships functions itself; that modules may travel by value is said to it through PySpark's public registration.
CLOUDPICKLE_USERS = "keyed.runtimes.spark"
# This one asks whether a function can be shipped; nothing reads what `dumps` gives it.
CLOUDPICKLE_ASKER = "keyed.runtimes.spark.plan.serialization"
# This one looks at which modules functions are shipped with; what it writes is thrown away.
CLOUDPICKLE_FINDER = "keyed.runtimes.spark.session.ship"
# This one sends functions to a process that it has started itself, over a pipe that nobody else has: each name is used
# in one function alone, nothing of the module is a socket or a file that others write, and one module imports it.
CLOUDPICKLE_SENDER = "keyed.testing.other_process"
CLOUDPICKLE_SENDERS_USER = "keyed.testing.properties"
CLOUDPICKLE_SENDS = {
    "dumps": "_packed",
    "list_registry_pickle_by_value": "_packed",
    "loads": "_unpacked",
    "register_pickle_by_value": "_packed",
    "unregister_pickle_by_value": "_packed",
}
OTHER_SOURCES = {"asyncio", "http", "mmap", "multiprocessing", "socket", "socketserver", "ssl", "urllib"}
CLOUDPICKLE_NAMES = {"cloudpickle", "register_pickle_by_value", "unregister_pickle_by_value"}

ENGINE_MODULES = {"asyncio", "os", "pathlib", "random", "secrets", "shutil", "socket", "subprocess", "tempfile", "time"}
ENGINE_NAMES = {"now", "today", "utcnow", "uuid1", "uuid4"}

#: Packages that store, hash or compare data. Another version of Python must do the same with it.
STORING = {"arrow", "changelog", "codec", "content", "engine", "recovery", "stores", "table_state", "tables"}
STORING_MODULES = (
    "keyed.runtimes.local.",
    "keyed.destinations.sink",
    "keyed.destinations.parquet",
    "keyed.destinations.upsert_topic",
    "keyed.job.restoring",
)
#: What depends on the tables of the interpreter, or on its hash seed.
INTERPRETER_CALLS = {"ascii", "hash", "repr"}
INTERPRETER_METHODS = {
    *("capitalize", "casefold", "isalnum", "isalpha", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric"),
    *("isprintable", "isspace", "istitle", "isupper", "lower", "swapcase", "title", "upper"),
}
#: Functions that compute texts for people, as errors, logs and representations are.
TEXTS = re.compile(
    r".*(Error|Exception|Warning|Corruption)|warn|warning|info|debug|error|add_note|__repr__|_repr_html_"
)
#: Other functions that may, by the reason.
INTERPRETED = {*chain(*read_data("interpreted.json").values())}

REGISTRY_HOSTS = [
    ".".join(parts.split())
    for parts in (
        *("pypi org", "pythonhosted org", "anaconda org", "crates io", "npmjs org", "npmjs com", "golang org"),
        *("maven org", "maven apache org", "debian org", "docker io"),
    )
]
MACHINE_PATH = re.compile(r"(?<![\w.~}>])/(?:work|root|home|Users|opt|usr/lib/jvm)/\w+")

#: The sources are parsed once, by the one worker that has all of this module.
pytestmark = pytest.mark.xdist_group("structure")


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the parsed source of a file of the project."""
    return ast.parse(path.read_text())


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a parsed source; the rules look at them one after the other."""
    return tuple(ast.walk(tree))


@cache
def calls_of(tree: ast.AST) -> tuple[tuple[ast.Call, str], ...]:
    """Return the calls of a parsed source with their dotted names."""
    return tuple((node, dotted(node.func)) for node in nodes_of(tree) if isinstance(node, ast.Call))


@pytest.fixture(scope="module", autouse=True)
def _forgotten_trees() -> Iterator[None]:
    """The sources are half a million objects without cycles, through which the garbage collector would look in vain."""
    gc.disable()
    yield
    for cached in (tree_of, nodes_of, calls_of, imports, found_interpreted):
        cached.cache_clear()
    gc.enable()


def module_name(path: Path) -> str:
    """Return the dotted name of a file of the project."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] == "windows":
        parts = ("keyed", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """Return the part of `keyed` that a module belongs to."""
    if module == "keyed":
        return "keyed"
    part = module.split(".")[1]
    return STANDING_ALONE.get(part, part)


MODULES = {*map(module_name, ALL_PYTHON)}


def is_module(name: str) -> bool:
    """Return whether a dotted name is a module of the project."""
    return name in MODULES


@cache
def imports(module: str, tree: ast.AST, *, package: bool = False) -> tuple[tuple[int, str, str | None], ...]:
    """Return (line, module, name) of all imports, in functions and for typing too; name is None for `import x`."""
    return tuple(each_import(module, tree, package=package))


def each_import(module: str, tree: ast.AST, *, package: bool) -> Iterator[tuple[int, str, str | None]]:
    """Yield what `imports` returns."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                base = module.split(".")[: len(module.split(".")) - node.level + package]
                source = ".".join([*base, *([source] if source else [])])
            for alias in node.names:
                if is_module(f"{source}.{alias.name}"):
                    yield node.lineno, f"{source}.{alias.name}", None
                else:
                    yield node.lineno, source, alias.name


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for an expression of that form, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and dotted(node.value):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def wrong_direction(module: str, tree: ast.AST, *, package: bool = False) -> list[str]:
    """Imports against the direction of dependencies."""
    wrong = []
    for line, target, name in imports(module, tree, package=package):
        top, own = target.partition(".")[0], module.partition(".")[0]
        if top == own == "keyed":
            part = part_of(module)
            allowed = part_of(target) in {*MAY_IMPORT[part], part}
            allowed |= module in TYPED and target.startswith(TYPED[module])
            if part in {"joins", "patterns", "postgres", "windows"} and part_of(target) != part:
                allowed = target in DOORS and (name is None or name in exported(target))
                allowed |= target in BESIDE_DOORS
        elif own == "examples":
            allowed = top != "tests"
        elif own == "keyed":
            # `windows` is the name of a clone.
            allowed = top not in {"windows", "examples", "tests"}
        else:
            allowed = True
        if not allowed:
            wrong.append(f"{module}:{line}: imports {target}{f' ({name})' if name else ''}")
    for node, called in calls_of(tree):
        if called.split(".")[-1] == "import_module":
            names = [str(part.value) for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
            seam = IMPORTS_BY_NAME.get(module)
            other_library = names and not any(f"{name}.".startswith("keyed.") for name in names)
            if not other_library and (seam is None or not all(name.startswith(tuple(seam.split())) for name in names)):
                wrong.append(f"{module}:{node.lineno}: imports {names or '?'} by name")
    return wrong


def circles(imported: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """The groups of modules that import each other, one through another or itself."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        ahead = [start]
        while ahead:
            new = imported.get(ahead.pop(), set()) - found
            found |= new
            ahead += new
        return found

    reach = {module: reached(module) for module in imported}
    return sorted(
        {tuple(sorted(each for each in reach[m] if m in reach.get(each, ()))) for m in reach if m in reach[m]}
    )


def looked_inside(module: str, tree: ast.AST) -> list[str]:
    """Return the private attributes of streams and outputs that `windows` uses."""
    inside = {"inputs", "origins", "stage", "chain", "source"}
    return [
        f"{module}:{node.lineno}: uses .{node.attr}"
        for node in nodes_of(tree)
        if isinstance(node, ast.Attribute) and node.attr in inside
    ]


def told_apart(module: str, tree: ast.AST) -> list[str]:
    """Entries told from rows of tables, which only `keyed.content` does."""
    if module.startswith("keyed.content."):
        return []
    kinds = {"TableBlock", "TableChange"}
    wrong = [f"{module}:{line}: imports {name}" for line, _, name in imports(module, tree) if name in kinds]
    for node, called in calls_of(tree):
        if called == "isinstance":
            names = {dotted(part).split(".")[-1] for part in ast.walk(node)}
            if names & {*kinds, "TableDelta"} or {"block", "list"} <= names:
                wrong.append(f"{module}:{node.lineno}: tells {dotted(node.args[0])} by its type")
    return wrong


def exported(module: str) -> set[str]:
    """Return the public names of a module of the project, as its `__all__` says."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return set(declared_names(tree_of(path)) or ())


def declared_names(tree: ast.Module) -> list[str] | None:
    """Return the `__all__` of a module, None if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(dotted(target) == "__all__" for target in targets):
                return list(ast.literal_eval(node.value))
    return None


def bound_names(body: list[ast.stmt]) -> set[str]:
    """Return the public names that a module binds, less what it takes from the standard library."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                source = node.module or "" if isinstance(node, ast.ImportFrom) else alias.name
                if source.partition(".")[0] not in sys.stdlib_module_names:
                    names.add((alias.asname or alias.name).split(".")[0])
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
            # What a module does under another name.
            continue
        elif isinstance(node, ast.If | ast.Try):
            names |= bound_names([*node.body, *node.orelse])
    return {name for name in names if not name.startswith("_")}


def export_order(name: str) -> tuple[bool, bool, str]:
    """Return the sort key of `__all__`, which is ruff's: constants, then classes, then the rest."""
    return (not name.isupper(), not name[:1].isupper(), name)


def wrong_exports(module: str, tree: ast.Module, *, package: bool) -> list[str]:
    """An `__all__` that nothing reads, is not sorted, names what is not there or, in a package, leaves out what is."""
    declared, bound = declared_names(tree), bound_names(tree.body)
    if module == "keyed":
        bound -= ON_DEMAND | {"metrics", "topics", "vectorized"}
    if declared is not None and not package and module not in PUBLIC_MODULES:
        return [f"{module}: has an __all__, which nothing reads"]
    if declared is None:
        return [f"{module}: has public names and no __all__: {sorted(bound)}"] if package and bound else []
    wrong = []
    if declared != sorted(set(declared), key=export_order):
        wrong.append(f"{module}: __all__ is not sorted: {declared}")
    missing = set(declared) - bound
    if missing and package:  # given by the package's __getattr__, on demand
        missing = {name for name in missing if not hasattr(importlib.import_module(module), name)}
    if missing:
        wrong.append(f"{module}: __all__ names what is not there: {sorted(missing)}")
    if package and bound - set(declared):
        wrong.append(f"{module}: public, but not in __all__: {sorted(bound - set(declared))}")
    return wrong


def unsafe_code(module: str, tree: ast.AST) -> list[str]:
    """Pickling, evaluation of text, unsafe YAML."""
    wrong = []
    registers = f"{module}.".startswith(f"{CLOUDPICKLE_USERS}.") or module == CLOUDPICKLE_SENDER
    names = CLOUDPICKLE_NAMES | ({"dumps"} if module == CLOUDPICKLE_ASKER else set())
    names |= {"Pickler"} if module == CLOUDPICKLE_FINDER else set()
    names |= set(CLOUDPICKLE_SENDS) if module == CLOUDPICKLE_SENDER else set()
    for line, target, name in imports(module, tree):
        parts = {*target.split("."), name}
        allowed = {"cloudpickle"} if module == CLOUDPICKLE_SENDER else {"pyspark", "pyspark.cloudpickle"}
        if parts & FORBIDDEN_MODULES and not (registers and {target, name} & allowed):
            wrong.append(f"{module}:{line}: imports {target}{f' ({name})' if name else ''}")
        elif (
            "cloudpickle" in parts
            and name is not None
            and (name not in names or (module == CLOUDPICKLE_SENDER and name != "cloudpickle"))
        ):
            wrong.append(f"{module}:{line}: imports {name} from {target}")
    wrong += [
        f"{module}:{node.lineno}: calls {called}"
        for node, called in calls_of(tree)
        if called.removeprefix("builtins.") in FORBIDDEN_CALLS
    ]
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute):
            owner = dotted(node.value).split(".")[-1]
            if owner == "cloudpickle" and node.attr not in names:
                wrong.append(f"{module}:{node.lineno}: uses cloudpickle.{node.attr}")
    return wrong + (careless_sending(module, tree) if module == CLOUDPICKLE_SENDER else [])


def careless_sending(module: str, tree: ast.AST) -> list[str]:
    """Uses of cloudpickle outside of the two functions that pack and unpack, sockets, and files that are opened."""
    wrong = [
        f"{module}:{line}: imports {target}"
        for line, target, _ in imports(module, tree)
        if target.partition(".")[0] in OTHER_SOURCES
    ]
    where = {
        id(node): function.name
        for function in nodes_of(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and dotted(node.value).split(".")[-1] == "cloudpickle":
            function = where.get(id(node))
            if function != CLOUDPICKLE_SENDS.get(node.attr):
                wrong.append(f"{module}:{node.lineno}: uses cloudpickle.{node.attr} in {function}")
        if isinstance(node, ast.Call) and dotted(node.func) in ("open", "io.open", "Path.open"):
            wrong.append(f"{module}:{node.lineno}: calls {dotted(node.func)}")
    return wrong


def impure_engine(module: str, tree: ast.AST) -> list[str]:
    """The wall clock, sleeping, chance and I/O: the engine is given a clock, a store and a log."""
    wrong = [
        f"{module}:{line}: imports {target}"
        for line, target, name in imports(module, tree)
        if target.partition(".")[0] in ENGINE_MODULES or name in ENGINE_NAMES
    ]
    wrong.extend(
        f"{module}:{node.lineno}: calls {name}"
        for node, name in calls_of(tree)
        if name == "open" or name.split(".")[-1] in ENGINE_NAMES
    )
    return wrong


def named_places(text: str) -> list[str]:
    """Registry hosts and absolute paths of a machine that a text names."""
    return [host for host in REGISTRY_HOSTS if host in text] + MACHINE_PATH.findall(text)


def project_files() -> list[Path]:
    """Return the files that git keeps or would keep; where there is no git, those of the source folders."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        return [*ALL_PYTHON, *ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("*.t*"), ROOT / "Makefile"]
    return [path for name in listed if name and (path := ROOT / name).is_file()]


def unshrinkable(module: str, tree: ast.AST) -> list[str]:
    """Properties whose chance is not Hypothesis' own: a failure of theirs cannot be made smaller."""
    wrong = []
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(each, ast.Call) and dotted(each.func).endswith("given") for each in node.decorator_list
        ):
            seeds = [parameter.arg for parameter in node.args.args if parameter.arg == "seed"]
            made = [
                each for each in ast.walk(node) if isinstance(each, ast.Call) and dotted(each.func)[-6:] == "Random"
            ]
            if seeds or made:
                wrong.append(f"{module}:{node.lineno}: {node.name} makes its own chance: take it from st.randoms()")
    return wrong


def sleeping(module: str, tree: ast.AST) -> list[str]:
    """Tests that wait for a time, and not for what they need."""
    if module == "tests.support.waiting" or module.startswith("tests.benchmarks."):
        return []
    return [f"{module}:{node.lineno}: sleeps" for node, name in calls_of(tree) if name.split(".")[-1] == "sleep"]


def losing_cancellations(module: str, tree: ast.AST) -> list[str]:
    """Calls of `asyncio.wait_for`, which may swallow a cancellation before Python 3.12: `asyncio.timeout` does not."""
    return [f"{module}:{node.lineno}: calls {name}" for node, name in calls_of(tree) if name == "asyncio.wait_for"]


#: Phrases of the old prose, which CONTRIBUTING.md asks to avoid: name the actor, and use the field's verb.
TRANSLATED = re.compile(r"\b(whoever|anew|told|by now|in vain|taken apart)\b", re.IGNORECASE)
#: More of them, which the code has lost. Documentation pages may still have them.
TRANSLATED_CODE = re.compile(
    r"\b(left in peace|whatever becomes of|hardly anyone|goes by|kept level|hands on|as it is by then|nobody may"
    r"|let go of|is no time|at hand|whatever the condition|in place of what|written over)\b",
    re.IGNORECASE,
)
#: A summary is a verb for a function, and a noun phrase for a class or module.
QUESTION = re.compile(r"(What|Whoever|Who|Whose|How|Which|Whether)\b")


#: Names of the old code. A helper's name is a verb with an object, a variable's the field's noun.
RENAMED = {
    *("_say", "tell_hypothesis", "worry", "_doing", "stands", "Sealed", "LEFT_OUT", "_LEFT_OUT", "_whole", "_gone"),
    *("_there", "_flushed"),
}
#: Participles, which name neither a value nor what a function does.
PARTICIPLES = {"asked", "found", "given", "made", "said", "taken", "told", "wanted"}


def translated(where: str, text: str, first: int = 1, phrases: re.Pattern[str] = TRANSLATED) -> list[str]:
    """Return the lines of a text with a phrase that does not belong there."""
    return [
        f"{where}:{number} says {found.group()!r}"
        for number, line in enumerate(text.split("\n"), first)
        for found in phrases.finditer(line)
    ]


def wrong_english(module: str, tree: ast.AST) -> list[str]:
    """Return the docstrings and messages of a module with such a phrase, and the docstrings that are questions."""
    found = []
    documented = {}
    for node in nodes_of(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented[id(first.value)] = first.value
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += translated(module, node.value, node.lineno)
            found += translated(module, node.value, node.lineno, TRANSLATED_CODE)
    for docstring in documented.values():
        if begins := QUESTION.match(str(docstring.value).lstrip()):
            found.append(f"{module}:{docstring.lineno} begins with {begins.group()!r}")
    return found


def over(files: list[Path], check, *, word: str = "", package: bool = False) -> list[str]:
    """Run a rule over files, of which there must be some; those without the word cannot break it."""
    assert files, "the rule is for a folder that is not there: move it to where its modules went"
    found: list[str] = []
    for path in files:
        if word in path.read_text():
            arguments = {"package": path.name == "__init__.py"} if package else {}
            found += check(module_name(path), tree_of(path), **arguments)
    return found


def interpreted(module: str, tree: ast.AST) -> list[str]:
    """Return what depends on the version or the hash seed of Python, outside of texts for people."""
    return [problem for problem in found_interpreted(module, tree) if problem.rpartition(": ")[0] not in INTERPRETED]


@cache
def found_interpreted(module: str, tree: ast.AST) -> tuple[str, ...]:
    """Return what depends on the version or the hash seed of Python, also where it may."""
    return tuple(interpreted_by(module, tree))


def interpreted_by(module: str, tree: ast.AST) -> Iterator[str]:
    """Yield what `found_interpreted` returns."""

    def walk(node: ast.AST, function: str) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}"
        called = node.func if isinstance(node, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else dotted(called) if called else ""
        if isinstance(node, ast.Raise) or TEXTS.fullmatch(name or function.rpartition(".")[2]):
            return
        if name in (INTERPRETER_METHODS if isinstance(called, ast.Attribute) else INTERPRETER_CALLS):
            yield f"{function}: {name}()"
        # An f-string with words is a message.
        if isinstance(node, ast.JoinedStr) and " " not in "".join(
            str(part.value) for part in node.values if isinstance(part, ast.Constant)
        ):
            shown = [part for part in node.values if isinstance(part, ast.FormattedValue) and part.conversion > 0]
            yield from (f"{function}: !r" for part in shown if part.conversion != ord("s"))
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)

    for _, source, _ in imports(module, tree):
        if source == "unicodedata":
            yield f"{module}: unicodedata"
    yield from walk(tree, module)


def test_every_rule_is_about_modules_that_are_there():
    ruled = {f"keyed.{part}" for part in MAY_IMPORT if part != "keyed"}
    ruled |= {
        *IMPORTS_BY_NAME,
        *(name.rstrip(".") for names in IMPORTS_BY_NAME.values() for name in names.split()),
        CLOUDPICKLE_USERS,
        CLOUDPICKLE_ASKER,
        CLOUDPICKLE_FINDER,
        CLOUDPICKLE_SENDER,
        CLOUDPICKLE_SENDERS_USER,
    }
    assert {name for name in ruled if not is_module(name)} == set()
    assert {part_of(name) for name in map(module_name, LIBRARY) if name.startswith("keyed")} == set(MAY_IMPORT)
    assert {target for allowed in MAY_IMPORT.values() for target in allowed} <= set(MAY_IMPORT)


def twice(files: list[Path]) -> list[str]:
    """Return the names that two modules have, or public classes of two modules."""
    found: dict[str, set[str]] = {}
    for path in files:
        module = module_name(path)
        if path.stem not in {"__init__", "__main__"}:
            found.setdefault(f"module {path.stem}", set()).add(module)
        # Under PyFlink's names stands what does the same under it.
        for node in tree_of(path).body if module != "keyed.pyflink" else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(f"class {node.name}", set()).add(module)
    return [f"{name}: {sorted(modules)}" for name, modules in sorted(found.items()) if len(modules) > 1]


def test_one_name_is_one_thing():
    assert twice(LIBRARY) == []


def test_a_name_of_two_things_is_seen(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    files = [tmp_path / "keyed" / name / "same.py" for name in ("a", "b")]
    for path in files:
        path.parent.mkdir(parents=True)
        path.write_text("class Same: ...\nclass _Own: ...")
    assert twice(files) == [
        "class Same: ['keyed.a.same', 'keyed.b.same']",
        "module same: ['keyed.a.same', 'keyed.b.same']",
    ]


def test_dependencies_have_one_direction():
    assert over(LIBRARY + sorted(ROOT.glob("examples/**/*.py")), wrong_direction, package=True) == []


def test_no_name_is_one_of_the_old_code():
    found = []
    for path in LIBRARY:
        for node in nodes_of(tree_of(path)):
            names = {getattr(node, attribute, None) for attribute in ("id", "arg", "attr", "name")}
            found += [f"{module_name(path)}: {name}" for name in names & RENAMED]
    assert found == []


def participles(module: str, tree: ast.AST) -> list[str]:
    """Return the variables, parameters and inner functions of a module that have a participle as their name."""
    functions = [node for node in nodes_of(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    bound = {
        (
            getattr(node, "lineno", 0),
            getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "name", None),
        )
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.arg | ast.FunctionDef) or isinstance(getattr(node, "ctx", None), ast.Store)
    }
    return sorted(f"{module}:{line}: {name}" for line, name in bound if name in PARTICIPLES)


def test_no_participle_names_a_value_or_a_function():
    assert over(LIBRARY, participles) == []


#: Sources that break a rule, with the modules that they would be in.
BREACHES = read_data("structure_breaches.json")


@pytest.mark.parametrize(
    ("rule", "module", "source"), [(rule, *breach) for rule, breaches in BREACHES.items() for breach in breaches]
)
def test_a_breach_is_seen(rule, module, source):
    assert is_module(module)
    arguments = {"package": module == "keyed"} if rule == "wrong_exports" else {}
    assert globals()[rule](module, ast.parse(source), **arguments)


def imported_by(path: Path) -> set[str]:
    """The modules that a file imports, also in functions and for types."""
    module = module_name(path)
    found = {target for _, target, _ in imports(module, tree_of(path), package=path.name == "__init__.py")}
    if module == "keyed":
        found -= {f"keyed.{name}" for name in ON_DEMAND}
    return {target for target in found - {module} if not target.startswith(TYPED.get(module, "-"))}


def test_no_modules_import_each_other():
    assert circles({module_name(path): imported_by(path) for path in LIBRARY}) == []


def test_circles_are_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [("b", "c")]


def test_windows_use_public_names_in_fact():
    assert (
        over(
            sorted(
                path for glob in ("windows/**", "keyed/joins", "keyed/patterns") for path in ROOT.glob(f"{glob}/*.py")
            ),
            looked_inside,
        )
        == []
    )


def test_entries_and_tables_are_told_apart_in_content_alone():
    assert over(sorted(ROOT.glob("keyed/**/*.py")), told_apart) == []


def test_right_directions_are_allowed():
    assert not wrong_direction(
        "keyed.engine.key_group", ast.parse("from keyed.codec.keys import x\nimport keyed.errors")
    )
    assert not wrong_direction("keyed.job.streams", ast.parse("importlib.import_module('keyed.runtimes.local')"))
    assert not wrong_direction(
        "keyed.windows.window_operator", ast.parse("import keyed.extending\nimport keyed.windows.general\nimport attrs")
    )
    assert not wrong_direction("keyed.runtimes.spark", ast.parse("from .java import x"), package=True)


def test_importing_loads_no_heavy_library():
    modules = (
        "keyed, keyed.codec, keyed.engine, keyed.runtimes, keyed.testing, keyed.joins, keyed.patterns, keyed.windows"
    )
    program = f"import sys, {modules}; print(sorted({{name.split('.')[0] for name in sys.modules}} & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_importing_keyed_does_not_load_what_runs_it():
    program = "import sys, keyed; loaded = 'keyed.engine' in sys.modules; keyed.recovery.read_changelog; print(loaded)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_names_that_are_fetched_on_demand_are_completed_too():
    import keyed

    assert set(keyed.__all__) <= set(dir(keyed))


def test_public_names_are_sorted_and_exact():
    assert over(LIBRARY, wrong_exports, package=True) == []


def test_nothing_pickles_or_evaluates():
    assert over(LIBRARY, unsafe_code) == []


def test_registration_with_cloudpickle_is_allowed_where_spark_is():
    source = "from pyspark import cloudpickle\ncloudpickle.register_pickle_by_value(keyed)"
    assert not unsafe_code("keyed.runtimes.spark.query.spark_query", ast.parse(source))


def test_one_module_sends_functions_to_another_process():
    users = {
        module_name(path)
        for path in LIBRARY
        for _, target, name in imports(module_name(path), tree_of(path))
        if CLOUDPICKLE_SENDER in (target, f"{target}.{name}")
    }
    assert users == {CLOUDPICKLE_SENDERS_USER}


def test_the_engine_has_no_clock_no_chance_and_no_files():
    assert over(sorted(ROOT.glob("keyed/engine/**/*.py")), impure_engine) == []


def storing() -> list[Path]:
    """Return the modules that store, hash or compare data."""
    names = {path: module_name(path) for path in LIBRARY}
    return [path for path, name in names.items() if part_of(name) in STORING or name.startswith(STORING_MODULES)]


def test_what_is_stored_hashed_or_compared_does_not_depend_on_the_version_of_python():
    assert over(storing(), interpreted) == []


def test_exceptions_of_the_version_of_python_are_needed():
    assert INTERPRETED - {problem.rpartition(": ")[0] for problem in over(storing(), found_interpreted)} == set()


def test_texts_for_people_may_depend_on_the_version_of_python():
    source = "def f(key):\n    if not key: raise ValueError(repr(key))\n    return f'the key {key!r}'"
    assert interpreted("keyed.codec.keys", ast.parse(source)) == []


def test_properties_draw_their_chance_from_hypothesis():
    assert over(sorted(ROOT.glob("tests/**/*.py")), unshrinkable, word="given(") == []


def test_tests_wait_for_what_they_need_and_do_not_sleep():
    assert over(sorted(ROOT.glob("tests/**/*.py")), sleeping, word="sleep") == []


def test_no_cancellation_is_lost():
    assert over(LIBRARY, losing_cancellations, word="wait_for") == []


def test_the_second_level_has_one_word():
    files = [path for path in project_files() if path.suffix in {".py", ".md"} and path != Path(__file__).resolve()]
    assert [path.name for path in files if re.search(r"(?i)vectoris", path.read_text())] == []


def test_every_module_says_what_it_is_for():
    begins = re.compile(r'(#.*\n|\s)*r?"""\s*\S')
    without = [module_name(path) for path in ALL_PYTHON if not begins.match(path.read_text())]
    assert without == []


def unmapped(package: Path, text: str) -> list[str]:
    """The modules of a package that the map in its docstring leaves out, or that it has and are not there."""
    there = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    lines = re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)
    mapped = {name for line in lines for name in re.findall(r"`([a-z_]+)`", line)}
    return sorted(mapped ^ (there - {"__init__", "__main__"})) if lines else []


def test_maps_of_packages_are_right():
    for path in LIBRARY:
        if path.name == "__init__.py":
            text = ast.get_docstring(tree_of(path)) or ""
            assert unmapped(path.parent, text) == [], module_name(path)


def test_a_wrong_map_is_seen(tmp_path):
    for name in ("__init__", "a", "b"):
        (tmp_path / f"{name}.py").touch()
    assert unmapped(tmp_path, "- `a`: one, by `Name`.\n  `b`: two.") == []
    assert unmapped(tmp_path, "- `a`: one.\n- `c`: three.") == ["b", "c"]


def test_no_file_names_a_registry_or_a_machine():
    found = {}
    for path in project_files():
        try:
            named = named_places(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        if named:
            found[str(path.relative_to(ROOT))] = named
    assert found == {}


def test_named_places_are_seen():
    assert named_places("see https://" + REGISTRY_HOSTS[0] + "/project") == [REGISTRY_HOSTS[0]]
    assert named_places("in /" + "home/me/x") == ["/" + "home/me"]
    assert named_places("$HOME/me, ~/home/x, examples/work/x, /usr/bin/env, https://a.org/work/x") == []


def test_the_top_level_holds_what_is_agreed():
    agreed = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"}
    agreed |= {"Makefile", "constraints.txt", "pyproject.toml", "docs", "examples", "keyed", "tests", "windows"}
    top = {path.relative_to(ROOT).parts[0] for path in project_files()}
    assert {name for name in top if not name.startswith(".")} - agreed == set()


def test_docstrings_messages_and_pages_are_in_plain_english():
    """A finding has the module or page, the line and the phrase. CONTRIBUTING.md has the rule."""
    examples = sorted([*ROOT.glob("examples/**/*.py"), *ROOT.glob("tests/support/**/*.py")])
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests" / "README.md"]
    found = []
    for path in [*LIBRARY, *examples]:
        text = path.read_text(encoding="utf-8")
        # Most modules need not be parsed.
        if TRANSLATED.search(text) or TRANSLATED_CODE.search(text) or re.search(rf'"""\s*{QUESTION.pattern}', text):
            found += wrong_english(module_name(path), tree_of(path))
    for page in pages:
        found += translated(str(page.relative_to(ROOT)), page.read_text(encoding="utf-8"))
    assert found == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('def f():\n    """What is left."""', ["keyed.job.state:2 begins with 'What'"]),
        ('class A:\n    """A thing.\n\n    It is built anew.\n    """', ["keyed.job.state:4 says 'anew'"]),
        ("raise E(f'{a} is told of b')", ["keyed.job.state:1 says 'told'"]),
        ("raise E('no key is at hand')", ["keyed.job.state:1 says 'at hand'"]),
        ("parser.add_argument('x', help='for whoever asks')", ["keyed.job.state:1 says 'whoever'"]),
        ('def f():\n    """Return whether it has ended."""\n    # told', []),
    ],
)
def test_other_english_is_seen(source, found):
    assert wrong_english("keyed.job.state", ast.parse(source)) == found


def test_every_rule_of_the_specification_names_tests_that_are_there():
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), flags=re.MULTILINE)
    }
    for path in ROOT.glob("tests/acceptance/*.json"):
        there |= {*re.findall(r'"name": "(\w+)"', path.read_text())}
    rules = re.findall(
        r"^- \*\*([A-Z]\d+)\*\* .*\.\* (.*)$",
        (ROOT / "docs/reference/specification.md").read_text(),
        flags=re.MULTILINE,
    )
    assert len(rules) == len({number for number, _ in rules}) > 50
    for number, tests in rules:
        named = re.findall(r"`(\w+)`", tests)
        assert named, number
        assert set(named) <= there, number


#: What the project may weigh: code lines (without blanks, comments and docstrings), exported names, words of pages. A
#: change that raises one says why in its commit.
CEILINGS = {
    "code lines of the source": 56_061,
    "code lines of keyed/sql": 4_500,
    "code lines of the tests": 61_930,
    "exported names without keyed.pyflink": 220,
    "exported names of keyed": 50,
    "words of docs": 74_990,
    "words of README": 955,
}


def code_lines(source: str, tree: ast.Module) -> int:
    """Return the number of lines that are neither blank, comments nor docstrings."""
    left_out = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                left_out |= {*range(first.lineno, (first.end_lineno or first.lineno) + 1)}
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in left_out
        for number, line in enumerate(source.splitlines(), 1)
    )


def test_code_lines_are_counted():
    source = '"""A module."""\n\n# A comment.\nx = 1\n\n\ndef f():\n    """Return\n    it."""\n    return x\n'
    assert code_lines(source, ast.parse(source)) == 3


def test_the_project_weighs_no_more_than_it_did():
    exports = {module_name(path): set(exported(module_name(path))) for path in LIBRARY}
    weights = {
        "code lines of the source": sum(code_lines(path.read_text(), tree_of(path)) for path in LIBRARY),
        "code lines of keyed/sql": sum(
            code_lines(path.read_text(), tree_of(path)) for path in LIBRARY if path.is_relative_to(ROOT / "keyed/sql")
        ),
        "code lines of the tests": sum(
            code_lines(path.read_text(), tree_of(path)) for path in ALL_PYTHON if path.is_relative_to(ROOT / "tests")
        ),
        "exported names without keyed.pyflink": len(
            set().union(*(names for module, names in exports.items() if module != "keyed.pyflink"))
        ),
        "exported names of keyed": len(exports["keyed"]),
        "words of docs": sum(len(path.read_text().split()) for path in ROOT.glob("docs/**/*.md")),
        "words of README": len((ROOT / "README.md").read_text().split()),
    }
    assert {name: weight for name, weight in weights.items() if weight > CEILINGS[name]} == {}, weights
