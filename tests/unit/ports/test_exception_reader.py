"""An exception as it is kept."""

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from everhold import errors
from everhold.exception_info import MAX_BYTES, ExceptionInfo, format_exception
from everhold.ports.exception_reader import describe_exception, strip_own_frames


def caught(function, *args):
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def described(function, *args):
    return describe_exception(caught(function, *args))


def functions(info):
    return [frame.function for frame in info.frames]


def deep(order):
    password = "hunter2"  # a local value, which is not kept
    assert password
    return order["sum"]


def middle(order):
    return deep(order)


def test_an_exception_has_its_frames_from_the_caller_to_the_line():
    info = described(middle, {})
    assert (info.type, info.message) == ("KeyError", "'sum'")
    assert functions(info) == ["caught", "middle", "deep"]
    last = info.frames[-1]
    assert (last.file, last.code) == (__file__, 'return order["sum"]')
    assert last.line == deep.__code__.co_firstlineno + 3


def test_no_values_are_kept():
    """The lines of code are those of the file; what names stood for is nowhere."""
    shown = format_exception(described(middle, {"other": "4111-1111"}))
    assert "4111" not in shown and "hunter2" not in shown


def test_frames_of_everhold_and_asyncio_are_left_out(monkeypatch):
    """They are the same in every failure; a variable keeps them."""

    async def task():
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
            raise ValueError("mine")

    def run():
        asyncio.run(task())

    info = described(run)
    assert functions(info) == ["caught", "run", "task"]
    assert functions(info.group[0]) == ["task"]
    monkeypatch.setenv("EVERHOLD_TRACEBACK", "full")
    files = {Path(frame.file).name for frame in described(run).frames}
    assert "runners.py" in files


def test_an_exception_without_a_frame_of_a_user_is_not_kept():
    """What everhold itself refuses says all in its message."""
    assert describe_exception(ValueError("never raised")) is None
    assert describe_exception(errors.BadValue("x", "no")) is None


def recurse():
    return recurse()


def test_a_recursion_keeps_twenty_frames():
    info = described(recurse)
    assert info.type == "RecursionError"
    assert len(info.frames) == 20
    assert info.left_out > 900
    assert functions(info)[0] == "caught" and functions(info)[-1] == "recurse"


def chain():
    try:
        deep({})
    except KeyError as error:
        raise ValueError("second") from error


def handling():
    try:
        deep({})
    except KeyError:
        raise ValueError("second")  # noqa: B904  (its context is what is tested)


def hiding():
    try:
        deep({})
    except KeyError:
        raise ValueError("second") from None


def test_causes_are_kept_as_they_were_named():
    """`from error`, what was being handled, and `from None`."""
    named = described(chain)
    assert (named.message, named.cause.type, named.handled) == ("second", "KeyError", False)
    assert functions(named.cause) == ["chain", "deep"]
    seen = described(handling)
    assert (seen.cause.type, seen.handled) == ("KeyError", True)
    assert described(hiding).cause is None


def test_a_cause_that_everhold_wrapped_is_kept_alone():
    """`PluginFailed from error`: only the error has frames of a plugin."""
    error = errors.PluginFailed("p", "before_turn", "KeyError: 'sum'")
    error.__cause__ = caught(middle, {})
    info = describe_exception(error)
    assert (info.type, functions(info)[-1]) == ("KeyError", "deep")


def test_a_recorded_exception_is_the_cause_of_its_answer():
    """`AnswerFailed` in a program has the frames of the program, and those of the call."""
    recorded = described(middle, {})
    error = errors.AnswerFailed("'sum'", "KeyError")
    error.exception = recorded
    error.add_note(format_exception(recorded))
    error.add_note("of the user")

    def program():
        raise error

    info = described(program)
    assert (info.type, info.cause, info.notes) == ("AnswerFailed", recorded, ["of the user"])


def test_a_chain_that_leads_back_to_itself_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first

    def raises():
        raise first

    info = described(raises)
    assert (info.message, info.cause.message, info.cause.cause) == ("a", "b", None)


def groups():
    found = []
    for name in "abcde":
        try:
            deep({name: 1})
        except KeyError as error:
            found.append(error)
    raise ExceptionGroup("five", found)


def test_of_a_group_the_first_three_are_kept():
    info = described(groups)
    assert info.message == "five (5 sub-exceptions)"
    assert [functions(part) for part in info.group] == [["groups", "deep"]] * 3
    assert info.more == 2


class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no")


class Worse(Exception):
    __notes__ = 7

    @property
    def __cause__(self):
        raise RuntimeError("no")

    __suppress_context__ = False


def raising(error):
    raise error


def test_reading_never_fails():
    """A message that raises, notes that are no list, text that JSON refuses, a huge message."""
    assert described(raising, Odd()).message == "its message cannot be read (RuntimeError)"
    assert described(raising, Worse("x")) is None
    noted = ValueError("x")
    noted.__notes__ = ("not", "a list")
    assert described(raising, noted).notes == []
    noted.__notes__ = ["ok", 7, "n" * 1000]
    assert described(raising, noted).notes == ["ok", "n" * 500 + "… (500 more characters)"]
    assert described(raising, ValueError("bad \udcff")).message == "bad \\udcff"
    huge = described(raising, ValueError("x" * 100_000))
    assert huge.message == "x" * 1000 + "… (99,000 more characters)"


def test_a_type_is_named_as_python_names_it():
    assert described(raising, Odd()).type == f"{__name__}.Odd"
    assert described(raising, KeyError("x")).type == "KeyError"
    assert described(raising, errors.Expired("q-1")).type == "Expired"
    loaded = type("Mine", (Exception,), {"__module__": "shop_0123456789ab"})
    assert described(raising, loaded("x")).type == "shop.Mine"


def test_a_syntax_error_has_its_place_and_a_mark(tmp_path):
    """Without the frames that tried to compile it."""
    file = tmp_path / "shop_with_a_slip.py"
    file.write_text("import os\n\ndef pay(:\n    pass\n")

    def load():
        sys.path.insert(0, str(tmp_path))
        try:
            __import__("shop_with_a_slip")
        finally:
            sys.path.remove(str(tmp_path))

    info = described(load)
    assert functions(info) == ["caught", "load", ""]
    assert format_exception(info).endswith(
        f'  File "{file}", line 3\n    def pay(:\n            ^\nSyntaxError: invalid syntax'
    )
    assert described(compile, "f(1))", "text", "exec").frames[-1].mark == "    ^"


def test_a_file_that_cannot_be_read_has_no_line():
    code = compile("def f():\n    raise ValueError('x')\n", "<made>", "exec")
    names = {}
    exec(code, names)
    last = described(names["f"]).frames[-1]
    assert (last.file, last.line, last.function, last.code) == ("<made>", 2, "f", "")


def wide():
    group = []
    for _ in range(5):
        try:
            recurse()
        except RecursionError as error:
            error.add_note("n" * 1000)
            group.append(error)
    raise ExceptionGroup("x" * 5000, group) from group[0]


def test_what_is_kept_is_bounded():
    """However many frames, notes, causes and parts there are."""
    info = described(wide)
    assert isinstance(info, ExceptionInfo)
    assert len(msgspec.json.encode(info)) <= MAX_BYTES


def test_a_live_exception_keeps_the_frames_of_the_user_without_values():
    """What `Failed.__cause__` is: frames to look at, and no values that stay in memory."""
    error = caught(handling)
    strip_own_frames(error)
    trace, names = error.__traceback__, []
    while trace is not None:
        names.append(trace.tb_frame.f_code.co_name)
        # frames that still run keep their values
        assert trace.tb_frame.f_code.co_name == "caught" or trace.tb_frame.f_locals == {}
        trace = trace.tb_next
    assert names == ["caught", "handling"]
    inner = error.__context__.__traceback__
    assert inner.tb_next.tb_frame.f_locals == {}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_exception_that_is_no_error_is_read_too(kind):
    assert described(raising, kind("x")).type == kind.__name__
