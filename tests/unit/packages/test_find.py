"""Programs are found by what people and stored sessions call them."""

import logging
import sys
from pathlib import Path

import pytest

from everhold.errors import NotAProgram, RunsOnImport, UnknownProgram, VersionMissing
from everhold.packages.find import find_program, list_known_programs
from everhold.ports.program import REGISTRY, program

ONE = """
@program
async def refund(ctx, order: str) -> str:
    return order
"""
TWO = """
@program(name="refund", version=1)
async def refund_v1(ctx) -> str:
    return "old"

@program(version=2)
async def refund(ctx) -> str:
    return "new"
"""


# By module


def test_a_module_and_a_function(write):
    """`myapp.programs:refund` is found in the current folder, though it is not installed."""
    write("myapp/__init__.py")
    write("myapp/programs.py", ONE)

    found = find_program("myapp.programs:refund")

    assert (found.name, found.version, found.ref) == ("refund", 1, "myapp.programs:refund")


def test_a_module_in_the_folder_of_the_settings(write, here, monkeypatch):
    """A module is also looked for where the settings file is."""
    write("project/shop_in_root.py", ONE)
    write("project/deep/down/x.txt")
    monkeypatch.chdir(here / "project" / "deep" / "down")

    assert find_program("shop_in_root:refund", root=here / "project").ref == "shop_in_root:refund"


def test_what_was_decorated_here_is_not_loaded():
    """A program of this process is found though its reference could not be loaded."""

    @program
    async def local(ctx) -> None: ...

    assert find_program(local.ref, 1) is local


def test_the_module_where_it_was_moved_from(write):
    """A program that moved is found under its old reference if the old module imports it."""
    write("moved_new.py", TWO)
    write("moved_old.py", "from moved_new import refund\n")

    assert [
        find_program("moved_old:refund", 1).__name__,
        find_program("moved_old:refund", 2).__name__,
    ] == [
        "refund_v1",
        "refund",
    ]


def test_an_old_version_imported_under_its_function_name(write):
    """A program is also found by its own name where another module imported it under its
    function's.
    """
    write("moved_new.py", TWO)
    write("moved_old.py", "from moved_new import refund_v1\n")

    assert find_program("moved_old:refund", 1).__name__ == "refund_v1"


def test_a_method_path(write):
    """A program inside a class is found by its qualified name."""
    write("classy.py", "class Shop:\n    @program\n    async def refund(ctx): ...\n")

    assert find_program("classy:Shop.refund").ref == "classy:Shop.refund"


# Versions


def test_each_version_is_found(write):
    """Versions of one name live side by side in a module; without a version the newest is meant."""
    write("shop.py", TWO)

    found = [find_program("shop:refund", version) for version in (1, 2, None)]

    assert [one.__name__ for one in found] == ["refund_v1", "refund", "refund"]


def test_versions_under_one_function_name(write):
    """A redefined function does not hide the version before it."""
    write("shop.py", ONE + "@program(version=3)\nasync def refund(ctx): ...\n")

    assert [find_program("shop:refund", 1).version, find_program("shop:refund", 3).version] == [
        1,
        3,
    ]


def test_another_version_is_not_taken_instead(write):
    """Where only version 1 exists, version 2 is missing, not unknown."""
    write("shop.py", ONE)

    with pytest.raises(VersionMissing) as caught:
        find_program("shop:refund", 2)

    assert (caught.value.wanted, caught.value.found) == (2, 1)


def test_a_function_name_is_one_version(write):
    """The function's own name means that function, not a newer one of the same program."""
    write("shop.py", TWO)

    assert find_program("shop:refund_v1").version == 1


# From a file


@pytest.mark.parametrize(
    "form", ["jobs/shop.py", "./jobs/shop.py", "~/jobs/shop.py", "{here}/jobs/shop.py"]
)
def test_a_file_and_a_function(form, write, here, monkeypatch):
    """A path may be relative, absolute or begin at home; the reference is always the absolute
    one.
    """
    monkeypatch.setenv("HOME", str(here))
    file = write("jobs/shop.py", ONE)

    assert find_program(f"{form.format(here=here)}:refund").ref == f"{file}:refund"


def test_a_file_is_loaded_once(write):
    """The same file gives the same program, however it is named and whatever happened to it on
    disk.
    """
    file = write("shop.py", ONE)
    first = find_program("shop.py:refund")
    file.write_text("raise ValueError")

    assert find_program(f"{file}:refund", 1) is first
    assert find_program("./shop.py:refund") is first


@pytest.mark.process
def test_the_reference_is_the_one_a_script_stores(write, fresh):
    """What a script stores as it runs is what another process finds."""
    write("jobs/shop.py", ONE + "if __name__ == '__main__':\n    print(refund.ref)\n")

    stored = fresh("jobs/shop.py")
    finder = (
        f"from everhold.packages.find import find_program; print(find_program({stored!r}, 1).ref)"
    )

    assert fresh("-c", finder) == stored


@pytest.mark.process
def test_a_running_script_is_not_loaded_again(write, fresh):
    """A script that looks itself up finds the program it runs, and is executed once."""
    look = (
        "from everhold.packages.find import find_program\n"
        "assert find_program(__file__ + ':refund') is refund\n"
    )
    write("shop.py", ONE + "print('loaded')\n" + look)

    assert fresh("shop.py") == "loaded"


def test_a_file_imports_from_its_folder(write):
    """Neighbours are importable while the file loads, and later inside its functions."""
    write("jobs/near_one.py", "WORD = 'one'\n")
    write("jobs/near_two.py", "WORD = 'two'\n")
    later = "def later():\n    import near_two\n    return near_two.WORD\n"
    write("jobs/shop.py", "from near_one import WORD\n" + ONE + later)

    loaded = find_program("jobs/shop.py:refund").body.__globals__

    assert (loaded["WORD"], loaded["later"]()) == ("one", "two")


def test_a_file_in_a_package_imports_as_its_package_does(write):
    """Relative imports and imports from the package's root work."""
    write("src/pack/__init__.py")
    write("src/pack/inner/__init__.py")
    write("src/pack/inner/words.py", "WORD = 'word'\n")
    write("src/pack/inner/shop.py", "from .words import WORD\nfrom pack.inner import words\n" + ONE)

    assert find_program("src/pack/inner/shop.py:refund").body.__globals__["WORD"] == "word"


def test_a_file_that_clears_the_path(write):
    """A file may change `sys.path` while it loads."""
    write("shop.py", ONE + "import sys\ndel sys.path[0]\n")

    assert find_program("shop.py:refund").name == "refund"


def test_a_neighbour_is_not_mistaken_for_another_ones(write):
    """Two folders with a `tool_kit.py` each: the second file is refused rather than given the first
    one's.
    """
    write("a/tool_kit.py")
    write("b/tool_kit.py")
    write("a/shop.py", "import tool_kit\n" + ONE)
    write("b/shop.py", "from tool_kit import x\n" + ONE)
    find_program("a/shop.py:refund")

    with pytest.raises(UnknownProgram, match=r"has loaded .*a/tool_kit.py as 'tool_kit'"):
        find_program("b/shop.py:refund")


def test_types_are_those_of_the_file(write):
    """Annotations of a loaded file are resolved, so that arguments are validated."""
    write("shop.py", ONE)

    assert find_program("shop.py:refund").types["order"] is str


def test_odd_file_names(write):
    """A file name need not be an identifier."""
    file = write("my jobs/re-fund v1.2.py", ONE)

    assert find_program("my jobs/re-fund v1.2.py:refund").ref == f"{file}:refund"


# By name


def test_a_name_in_the_settings(write):
    """A bare name is looked up in the listed modules, files and references."""
    write("first.py", "@program\nasync def refund(ctx): ...\n")
    write("second.py", "@program\nasync def invoice(ctx): ...\n")
    write("third.py", "@program\nasync def remind(ctx): ...\n")
    listed = ["first", "second.py", "third:remind"]

    found = [find_program(name, programs=listed).name for name in ("refund", "invoice", "remind")]

    assert found == ["refund", "invoice", "remind"]


def test_a_name_with_versions(write):
    """A bare name with a version is that version."""
    write("shop.py", TWO)

    assert find_program("refund", 1, programs=["shop"]).__name__ == "refund_v1"
    with pytest.raises(VersionMissing):
        find_program("refund", 3, programs=["shop"])


def test_a_name_that_two_modules_have(write):
    """Two programs of one name in the settings are refused, and both are named."""
    write("left.py", ONE)
    write("right.py", ONE)

    with pytest.raises(
        UnknownProgram, match="several programs have this name: left:refund, right:refund"
    ):
        find_program("refund", programs=["left", "right"])


def test_the_same_program_listed_twice(write):
    """A program that another listed module imports is still one program."""
    write("left.py", ONE)
    write("right.py", "from left import refund\n")

    assert find_program("refund", programs=["left", "right"]).ref == "left:refund"


def test_a_name_of_this_process(write):
    """A name that no listed module has is looked up among the programs decorated here."""

    @program(name="only-in-this-process")
    async def local(ctx) -> None: ...

    assert find_program("only-in-this-process") is local


def test_a_function_name_is_good_enough(write):
    """A bare name may also be the function's, where no program is called so."""
    write("shop.py", TWO)

    assert find_program("refund_v1", programs=["shop"]).version == 1


@pytest.fixture
def installed(write, here, monkeypatch):
    """A distribution with entry points, as pip would leave it."""
    write("site/gift.py", ONE + "@program\nasync def wrap(ctx): ...\n")
    write("site/gift-1.0.dist-info/METADATA", "Name: gift\nVersion: 1.0\n")
    points = "[everhold.programs]\ngive-back = gift:refund\ngift = gift\nbroken = no_such_gift\n"
    write("site/gift-1.0.dist-info/entry_points.txt", points)
    monkeypatch.syspath_prepend(here / "site")


def test_a_name_of_an_entry_point(installed):
    """An entry point names a program, or a module whose programs go by their own names."""
    assert find_program("give-back").ref == "gift:refund"
    assert find_program("wrap").ref == "gift:wrap"


@pytest.mark.parametrize(
    "place", ["own_broken", "own_broken.py", "own_broken:refund", "no_such_module"]
)
def test_a_strategy_is_found_beside_a_module_that_does_not_load(place, write, caplog):
    """The module is named in a warning; a name that it says itself is not taken from elsewhere."""
    write("own_broken.py", "async def ucb(ctx): ...\nasync def (:  # not rank_all\n")

    assert find_program("rank", programs=[place]).ref == "everhold.packages.strategies.rank:rank"
    assert place.partition(":")[0] in caplog.text
    if place != "no_such_module":
        with pytest.raises(UnknownProgram, match="may have it does not load"):
            find_program("ucb", programs=[place])


def test_the_settings_come_before_entry_points(installed, write):
    """What the project lists wins over what is installed."""
    write("own.py", "@program(name='give-back')\nasync def mine(ctx): ...\n")

    assert find_program("give-back", programs=["own"]).ref == "own:mine"


def test_a_broken_listed_module_is_not_passed_over(installed, write):
    """If a listed module does not load, nobody else's program is taken under the name."""
    write("own_broken.py", "1 / 0\n")

    said = (
        r"no program 'give-back' was found: .* raised ZeroDivisionError: division by zero"
        r" \(.*own_broken.py, line 1\)"
    )
    with pytest.raises(UnknownProgram, match=said) as refused:
        find_program("give-back", programs=["own_broken"])
    assert refused.value.hint == "Fix own_broken, or remove it from `programs` in everhold.toml."


def test_all_that_is_known(installed, write):
    """`list_known_programs` lists what can be found by name; what does not load is told."""
    write("shop.py", TWO)
    write("bad.py", "import no_such_library\n")

    told = list_known_programs(["shop", "bad"])

    assert [(one.name, one.version, one.ref) for one in told.programs] == [
        ("refund", 1, "gift:refund"),
        ("refund", 1, "shop:refund_v1"),
        ("refund", 2, "shop:refund"),
        ("wrap", 1, "gift:wrap"),
    ]
    assert [problem.name for problem in told.problems] == ["bad", "no_such_gift"]


# What cannot be found


UNFOUND = {
    "no_such_module:refund": "there is no module 'no_such_module'",
    "shop.deeper:refund": "there is no module 'shop.deeper'",
    "absent.py:refund": "there is no file {here}/absent.py",
    "shop.txt:refund": "there is no module 'shop.txt'",
    "jobs/shop:refund": "{here}/jobs/shop is not a .py file",
    "my-shop:refund": "'my-shop' is neither a module name nor a .py file",
    "shop:refnd": "{here}/shop.py has no 'refnd'",
    "shop:": "{here}/shop.py has no ''",
    "shop.py": "it is a module, not a program",
    "shop.refund": "it is a module, not a program",
    "refund": "no program has this name",
    "shop:outer.<locals>.refund": "it was defined inside a function",
    "__main__:refund": "it was defined at a prompt or in a notebook of another process",
    "needs:refund": "needs needs 'no_such_library', which is not installed here",
    "wrong.py:refund": "invalid syntax ({here}/wrong.py, line 1)",
    "quits.py:refund": "{here}/quits.py calls exit(3) when it is loaded",
    "raises:refund": "loading raises raised KeyError: 'x' ({here}/raises.py, line 2)",
    "spaces:refund": "spaces has no 'refund'",
}


@pytest.mark.parametrize(("ref", "reason"), UNFOUND.items(), ids=UNFOUND)
def test_what_cannot_be_found_says_why(ref, reason, write, here):
    """Each way to miss a program has its sentence and a hint, and registers nothing."""
    write("shop.py", ONE)
    write("needs.py", ONE + "import no_such_library\n")
    write("wrong.py", "async def (:\n")
    write("quits.py", ONE + "raise SystemExit(3)\n")
    write("raises.py", "def f(): return {}\nf()['x']\n")
    write("spaces/x.txt")
    known_before = set(REGISTRY)

    with pytest.raises(UnknownProgram) as caught:
        find_program(ref)

    assert caught.value.reason == reason.format(here=here)
    assert caught.value.hint
    assert [ref for ref, _ in set(REGISTRY) - known_before if not ref.startswith("shop:")] == []


@pytest.mark.parametrize("ref", ["broken.py:refund", "broken:refund"])
def test_a_failed_load_leaves_nothing(ref, write):
    """Neither the half-loaded module nor its programs stay, and a mended file loads."""
    file = write("broken.py", ONE + "raise ValueError('half way')\n")
    modules, registry = set(sys.modules), set(REGISTRY)

    with pytest.raises(UnknownProgram, match="half way"):
        find_program(ref)
    assert [name for name in set(sys.modules) - modules if "broken" in name] == []
    assert set(REGISTRY) == registry

    file.write_text(
        file.read_text().replace("raise ValueError('half way')", "mended = 'by now, it is'")
    )
    assert find_program(ref).name == "refund"


def test_an_interrupt_is_not_an_error_of_the_program(write):
    """Ctrl-C while loading goes up, and leaves nothing."""
    write("stopped.py", ONE + "raise KeyboardInterrupt\n")
    registry = set(REGISTRY)

    with pytest.raises(KeyboardInterrupt):
        find_program("stopped.py:refund")

    assert set(REGISTRY) == registry


def test_an_interrupt_is_one_where_it_can_be_nothing_else(write, signals_told):
    write("stopped.py", ONE + "raise KeyboardInterrupt\n")
    with pytest.raises(UnknownProgram, match="raised KeyboardInterrupt"):
        find_program("stopped.py:refund")


SLOW = """
import time
from pathlib import Path
end = time.monotonic() + 60
while not Path("told").exists() and time.monotonic() < end:
    time.sleep(0.01)
"""


class _Telling(logging.Handler):
    def emit(self, record):
        Path("told").write_text(record.getMessage())


@pytest.mark.parametrize("ref", ["slow.py:refund", "slow:refund"])
def test_what_takes_long_to_load_is_named_while_it_does(ref, write, here, monkeypatch):
    """The module ends when somebody was told that everybody waits for it."""
    write("slow.py", SLOW + ONE)
    monkeypatch.setattr("everhold.packages.load.SLOW", 0.05)
    handler = _Telling()
    logging.getLogger("everhold").addHandler(handler)
    try:
        assert find_program(ref).name == "refund"
    finally:
        logging.getLogger("everhold").removeHandler(handler)

    what = str(here / "slow.py") if ref.startswith("slow.py") else "slow"
    assert Path("told").read_text().startswith(f"loading {what} takes long and blocks this process")


def test_a_near_miss_is_offered(write):
    """A misspelt name is answered with the nearest, or with all there are."""
    write("shop.py", ONE)

    with pytest.raises(UnknownProgram) as near:
        find_program("shop:refnd")
    with pytest.raises(UnknownProgram) as far:
        find_program("shop:zzz")

    assert near.value.hint == "Did you mean 'refund'?"
    assert far.value.hint == "Known names: refund."


NO_PROGRAMS = {
    "plain": "it is a plain function",
    "later": "it is an async function without @everhold.program",
    "number": "it is a value of type int",
}


@pytest.mark.parametrize(("name", "reason"), NO_PROGRAMS.items())
def test_what_is_no_program_says_what_it_is(name, reason, write):
    """A function without the decorator, or a value, is told apart from what is missing."""
    write("mixed.py", "def plain(): ...\nasync def later(ctx): ...\nnumber = 7\n")

    with pytest.raises(NotAProgram) as caught:
        find_program(f"mixed:{name}")

    assert caught.value.reason == reason


def test_a_decorator_on_the_wrong_thing(write):
    """`@program` on a plain function is reported as such when its module loads."""
    write("slip.py", "@program\ndef plain(ctx): ...\n")

    with pytest.raises(NotAProgram, match="not an `async def`"):
        find_program("slip:plain")


# Scripts that run when they are loaded

RUN = "from everhold.packages.find import refuse_while_loading as run\n"
RUNS = {
    "plainly": "run()\n",
    "and hides it": "try:\n    run()\nexcept Exception:\n    pass\n",
    "inside asyncio": "import asyncio\nasync def main(): run()\nasyncio.run(main())\n",
    "in a group": """
import asyncio
async def main():
    async with asyncio.TaskGroup() as group:
        async def go(): run()
        group.create_task(go())
asyncio.run(main())
""",
}


@pytest.mark.parametrize("where", ["{here}/runs.py", "runs"])
@pytest.mark.parametrize("body", RUNS.values(), ids=RUNS)
def test_a_script_that_would_run_itself_is_refused(body, where, write, here):
    """Starting a session while being loaded is refused, every time, with what to do."""
    write("runs.py", ONE + RUN + body)
    where = where.format(here=here)

    for _ in range(2):
        with pytest.raises(RunsOnImport) as caught:
            find_program(f"{where}:refund", 1)

    assert caught.value.path == where
    assert "__main__" in caught.value.hint


async def test_it_is_refused_inside_a_running_loop_too(write):
    """There `asyncio.run` in the script fails first; the error is the same, and no coroutine is
    left over.
    """
    write("runs.py", ONE + RUN + RUNS["inside asyncio"])

    with pytest.raises(RunsOnImport):
        find_program("runs.py:refund")


def test_a_guarded_script_is_loaded(write):
    """Lines under the main guard do not run."""
    write("guarded.py", ONE + RUN + "if __name__ == '__main__':\n    run()\n")

    assert find_program("guarded.py:refund").name == "refund"


def test_what_a_module_scheduled_may_run_later(write):
    """The refusal ends with the load: a function handed out by the module may start sessions."""
    write("handed.py", ONE + RUN + "import contextvars\nlater = contextvars.copy_context()\n")
    found = find_program("handed.py:refund")

    found.body.__globals__["later"].run(found.body.__globals__["run"])


def test_a_listed_module_that_runs_is_refused_as_such(write):
    """Also when a bare name led to it."""
    write("runs.py", RUN + "run()\n")

    with pytest.raises(RunsOnImport):
        find_program("refund", programs=["runs"])


def test_an_agent_of_a_file_is_known_by_the_file_and_its_variable(write):
    file = write("bots.py", "import everhold\nhelper = everhold.Agent(instructions='Be brief.')\n")
    found = find_program(f"{file}:helper")
    assert found.ref == f"{file}:helper"
    assert found.name == "helper"


def test_no_name_is_nobodys(write):
    """Not that of an agent either, which has no function with a name."""
    write("helpful.py", "import everhold\nhelper = everhold.Agent(instructions='Help.')\n")

    assert find_program("helper", programs=["helpful.py"]).ref.endswith("helpful.py:helper")
    with pytest.raises(UnknownProgram, match="no program has this name"):
        find_program("", programs=["helpful.py"])


@pytest.mark.parametrize("given", ["broken.py:refund", "./broken.py:refund", "shop.py:refnd"])
def test_an_error_names_a_program_as_its_caller_did(given, write):
    """The file is named whole in the reason."""
    write("broken.py", "async def (:\n")
    write("shop.py", ONE)
    with pytest.raises(UnknownProgram) as refused:
        find_program(given)
    assert str(refused.value).startswith(f"no program {given!r} was found: ")
    assert refused.value.name == given


MEANT = {
    "shoop.py:refund": "Did you mean shop.py:refund?",
    "shoop:refund": "Did you mean shop:refund?",
    "pkg.shoop:refund": "Did you mean pkg.shop:refund?",
    "shop.py": "Name a program in it: shop.py:refund",
    "pkg/shop.py": "Name a program in it: pkg/shop.py:refund",
    "pkg.shop": "Name a program in it: pkg.shop:refund",
    "pkg/": "Name a program in it: pkg/shop.py:refund",
    "shoop.py": "Did you mean shop.py?",
}


@pytest.mark.parametrize(("given", "hint"), MEANT.items(), ids=MEANT)
def test_a_file_or_module_that_was_meant_is_offered_whole(given, hint, write, here):
    """With the program, so that it can be copied; not one that lacks the program."""
    write("shop.py", ONE)
    write("pkg/__init__.py")
    write("pkg/shop.py", ONE)
    with pytest.raises(UnknownProgram) as refused:
        find_program(given)
    assert refused.value.hint == hint.format(here=here)
    with pytest.raises(UnknownProgram) as other:
        find_program("shoop.py:other")
    assert "Did you mean" not in other.value.hint


def test_a_name_that_a_broken_module_may_have_says_what_is_broken(write):
    """As the module itself does: the exception with its place, and what to fix."""
    write("broken.py", "x = 1\nasync def (:\n")
    with pytest.raises(UnknownProgram) as refused:
        find_program("refund", programs=["broken.py"])
    assert refused.value.exception.type == "SyntaxError"
    assert refused.value.exception.frames[-1].line == 2
    assert refused.value.hint.startswith("Fix ")


def test_a_file_with_a_mistake_shows_it_also_without_the_name_of_a_program(write):
    write("broken.py", "async def (:\n")
    with pytest.raises(UnknownProgram) as refused:
        find_program("broken.py")
    assert refused.value.exception.type == "SyntaxError"
