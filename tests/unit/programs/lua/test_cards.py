"""alc.card: cards.lua, verb by verb, on a dict that keeps the values."""

import json

import pytest

from tests.unit.programs.lua.library_harness import Library

NOW = "2027-01-15T08:00:00Z"  # of Library.now


def djb2_64(text: str) -> str:
    total = 5381
    for value in text.encode():
        total = (total * 33 + value) % 2**64
    return f"{total:016x}"


# ---- create and get


def test_create_fills_in():
    """Schema, time, maker, fingerprint of the parameters and an id, where they are absent."""
    library = Library()
    made = library.run(
        "return alc.card.create({pkg={name='cot'}, model={id='claude-opus-4.5'}, params={b='x',"
        " a=1}})"
    )
    found = library.run(f"return alc.card.get('{made['card_id']}')")
    prints = djb2_64('{"a":1,"b":"x"}')
    whole = (
        f'{{"created_at":"{NOW}","created_by":"alc@everhold-9.9","model":{{"id":"claude-opus-4.5"}},'
        f'"param_fingerprint":"{prints}","params":{{"a":1,"b":"x"}},"pkg":{{"name":"cot"}},"schema_version":"card/v0"}}'
    )
    id = f"cot_opus45_20270115T080000_{djb2_64(whole)[-6:]}"
    assert made == {"card_id": id, "path": f"alc://cards/{id}"}
    assert found == json.loads(whole) | {"card_id": id}


def test_create_keeps_what_is_given():
    given = (
        "{card_id='c', pkg={name='p'}, schema_version='v', created_at='t', created_by='me',"
        " param_fingerprint='f'}"
    )
    found = Library().run(f"alc.card.create({given}) return alc.card.get('c')")
    assert found == {
        "card_id": "c",
        "pkg": {"name": "p"},
        "schema_version": "v",
        "created_at": "t",
        "created_by": "me",
        "param_fingerprint": "f",
    }


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("gpt-4o-mini", "4omini"),
        ("claude-3", "3"),
        ("llama/3:8b", "llama38b"),
        ("---", "model"),
        (None, "model"),
    ],
)
def test_the_model_in_an_id(model, short):
    given = f", model={{id='{model}'}}" if model else ""
    made = Library().run(f"return alc.card.create({{pkg={{name='p'}}{given}}})")
    assert made["card_id"].startswith(f"p_{short}_20270115T080000_")


def test_nulls_are_dropped():
    """At every depth; empty arrays and false stay."""
    given = (
        "{card_id='c', pkg={name='p', v=null}, list={1, null, 2}, none=null, no=false,"
        " empty=alc.json_decode('[]')}"
    )
    found = Library().run(f"alc.card.create({given}) return alc.card.get('c')")
    assert (found["pkg"], found["list"], found["no"], found["empty"]) == (
        {"name": "p"},
        [1, 2],
        False,
        [],
    )
    assert "none" not in found


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (4_107_542_399.9, "2100-02-28T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
        (1_709_210_096, "2024-02-29T12:34:56Z"),
        (1_735_689_599, "2024-12-31T23:59:59Z"),
    ],
)
def test_dates(at, expected):
    library = Library()
    library.now = at
    found = library.run("return alc.card.get(alc.card.create({pkg={name='p'}}).card_id)")
    assert found["created_at"] == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{}", "alc.card.create: pkg.name is required"),
        ("{pkg='p'}", "alc.card.create: pkg.name is required"),
        ("{pkg={name=''}}", "alc.card.create: pkg.name is required"),
        ("{pkg={name=5}}", "alc.card.create: pkg.name is required"),
        ("nil", "alc.card.create: expected a table, got nil"),
        ("{pkg={name='a/b'}}", "alc.card.create: invalid pkg.name 'a/b'"),
        ("{pkg={name='.'}}", "alc.card.create: invalid pkg.name '.'"),
        ("{pkg={name='..'}}", "alc.card.create: invalid pkg.name '..'"),
        ("{pkg={name='a\\\\b'}}", "alc.card.create: invalid pkg.name 'a\\b'"),
        ("{pkg={name='p'}, card_id='x/y'}", "alc.card.create: invalid card_id 'x/y'"),
        ("{pkg={name='p'}, card_id=''}", "alc.card.create: invalid card_id ''"),
        ("{pkg={name='p'}, card_id=7}", "alc.card.create: invalid card_id '7'"),
    ],
)
def test_create_refuses(given, words):
    """And nothing is written."""
    library = Library()
    assert library.error(f"alc.card.create({given})") == words
    assert library.values == {}


def test_a_card_is_created_once():
    """Also under another package: an id means one card."""
    library = Library()
    library.run("alc.card.create({card_id='c', pkg={name='p'}, n=1})")
    for pkg in ("p", "q"):
        words = library.error(f"alc.card.create({{card_id='c', pkg={{name='{pkg}'}}, n=2}})")
        assert words == "alc.card.create: card 'c' already exists, and cards are immutable"
    assert library.run("return alc.card.get('c').n, #alc.card.list()") == [1, 1]


@pytest.mark.parametrize("id", ["'nothing'", "nil", "5", "'../x'", "''", "'\\xff'"])
def test_get_of_nothing(id):
    assert Library().run(f"return alc.card.get({id})") is None


def test_what_is_read_is_a_copy():
    """Changing it changes no card."""
    library = Library()
    library.run("alc.card.create({card_id='c', pkg={name='p'}}) alc.card.get('c').pkg.name = 'x'")
    assert library.run("return alc.card.get('c').pkg.name") == "p"


def test_programs_cannot_name_the_place():
    """The rooms of the cards have a sign that names of namespaces may not have."""
    library = Library()
    library.run(
        "alc.card.create({card_id='c', pkg={name='p'}}) alc.card.alias_set('a', 'c')"
        " alc.card.write_samples('c', {1})"
    )
    assert {room for room, _ in library.values} == {
        "card/id",
        "card/body",
        "card/index",
        "card/alias",
        "card/samples",
    }


# ---- list and find

FEW = """
local function make(id, pkg, at, rest)
  rest.card_id, rest.pkg, rest.created_at = id, {name = pkg}, at
  alc.card.create(rest)
end
make("a", "p", "2026-01-01T00:00:00Z", {stats = {pass_rate = 0.5, n = 10}, tags = {"x", "y"}, model = {id = "m1"}})
make("b", "p", "2026-01-03T00:00:00Z", {stats = {pass_rate = 1, n = 30}, tags = {"y"}, scenario = {name = "math"}})
make("c", "q", "2026-01-02T00:00:00Z", {stats = {pass_rate = 0.75}, note = "good start", ok = true})
make("d", "p", "2026-01-03T00:00:00Z", {ok = false})
"""  # noqa: E501


def ids(library: Library, code: str) -> list[str]:
    return [entry["card_id"] for entry in library.run(FEW + code)]


def test_list():
    """Newest first, then by id downwards, with what a summary says and nothing else."""
    found = Library().run(FEW + "return alc.card.list()")
    assert found == [
        {"card_id": "d", "pkg": "p", "created_at": "2026-01-03T00:00:00Z"},
        {
            "card_id": "b",
            "pkg": "p",
            "created_at": "2026-01-03T00:00:00Z",
            "scenario": "math",
            "pass_rate": 1,
        },
        {"card_id": "c", "pkg": "q", "created_at": "2026-01-02T00:00:00Z", "pass_rate": 0.75},
        {
            "card_id": "a",
            "pkg": "p",
            "created_at": "2026-01-01T00:00:00Z",
            "model": "m1",
            "pass_rate": 0.5,
        },
    ]


def test_list_of_a_package():
    """Of that package only; of nothing it is an empty array."""
    assert ids(Library(), "return alc.card.list({pkg = 'q'})") == ["c"]
    assert Library().run("return alc.card.list({pkg = 'none'}), alc.card.list()") == [[], []]
    assert Library().run(FEW + "return #alc.card.list({pkg='p'})") == 3
    assert Library().error("alc.card.list({pkg = 'a/b'})") == "alc.card.list: invalid pkg 'a/b'"
    assert Library().error("alc.card.list(5)") == "alc.card.list: options must be a table"


def test_a_listing_is_one_question():
    """However many cards there are: list asks once, and so does find."""
    library = Library()
    library.run(FEW)
    for code in ("alc.card.list()", "alc.card.find({limit=1})", "alc.card.find({where={ok=true}})"):
        library.questions = 0
        library.run(code)
        assert library.questions == 1


WHERE = [
    ("{}", "dbca"),
    ("{ok=true}", "c"),
    ("{ok=false}", "d"),
    ("{pkg={name='p'}}", "dba"),
    ("{stats={pass_rate=1.0}}", "b"),  # numbers are equal as numbers
    ("{stats={n=10}}", "a"),
    ("{stats={pass_rate={gte=0.75}}}", "bc"),
    ("{stats={pass_rate={gt=0.75}}}", "b"),
    ("{stats={pass_rate={lt=0.75}}}", "a"),
    ("{stats={pass_rate={lte=0.75}}}", "ca"),
    ("{stats={pass_rate={gt=0.5, lt=1}}}", "c"),
    ("{stats={pass_rate={gt='0'}}}", ""),  # no order between kinds
    ("{created_at={gte='2026-01-02', lt='2026-01-03'}}", "c"),
    ("{ok={gt=false}}", "c"),
    ("{stats={n={eq=30}}}", "b"),
    ("{stats={n={ne=30}}}", "dca"),  # what is missing is not equal
    ("{stats={n={['in']={10, 30}}}}", "ba"),
    ("{stats={n={nin={10}}}}", "dbc"),
    ("{stats={n={['in']={}}}}", ""),
    ("{stats={n={exists=true}}}", "ba"),
    ("{stats={n={exists=false}}}", "dc"),
    ("{stats={exists=false}}", "d"),
    ("{tags={contains='y'}}", "ba"),
    ("{tags={contains='z'}}", ""),
    ("{tags={'x', 'y'}}", "a"),
    ("{tags={eq={'y'}}}", "b"),
    ("{tags={'y', 'x'}}", ""),
    ("{note={contains='start'}}", "c"),
    ("{note={contains='.'}}", ""),  # words, not patterns
    ("{note={starts_with='good'}}", "c"),
    ("{note={starts_with='start'}}", ""),
    ("{stats={starts_with='x'}}", ""),
    ("{note={contains=5}}", ""),
    ("{ok=true, pkg={name='p'}}", ""),
    ("{_or={{ok=true}, {tags={contains='x'}}}}", "ca"),
    ("{_or={}}", ""),
    ("{_and={{pkg={name='p'}}, {stats={n={gt=5}}}}}", "ba"),
    ("{_and={}}", "dbca"),
    ("{_not={pkg={name='p'}}}", "c"),
    ("{stats={_not={pass_rate={gte=0.75}}}}", "da"),  # relative to where it stands
    ("{stats={_or={{n={gt=20}}, {pass_rate=0.75}}}}", "bc"),
    ("{_not={_or={{ok=true}, {ok=false}}}}", "ba"),
    ("{stats={pass_rate={deep={x=1}}}}", ""),
    ("{missing={ne=1}}", "dbca"),
    ("{missing={lt=1}}", ""),
    ("{missing={deep={exists=false}}}", "dbca"),
    ("{pkg={eq={name='q'}}}", "c"),
]


@pytest.mark.parametrize(("where", "expected"), WHERE)
def test_where(where, expected):
    assert "".join(ids(Library(), f"return alc.card.find({{where={where}}})")) == expected


@pytest.mark.parametrize(
    ("opts", "expected"),
    [
        ("", "dbca"),
        ("order_by='stats.pass_rate'", "acbd"),
        ("order_by='-stats.pass_rate'", "bcad"),  # what lacks it comes last whichever way
        ("order_by='created_at'", "acdb"),
        ("order_by={'-created_at', 'card_id'}", "bdca"),
        ("order_by={'pkg.name', '-stats.n'}", "badc"),
        ("order_by='-ok'", "cdba"),
        ("order_by='nothing'", "dbca"),
        ("order_by='card_id', limit=2", "ab"),
        ("order_by='card_id', offset=1, limit=2", "bc"),
        ("order_by='card_id', offset=3", "d"),
        ("offset=9", ""),
        ("limit=0", ""),
        ("limit=1", "d"),
        ("pkg='p', limit=2", "db"),
        ("pkg='p', where={ok=true}", ""),
        ("pkg='none', where={}", ""),
    ],
)
def test_order_and_pages(opts, expected):
    assert "".join(ids(Library(), f"return alc.card.find({{{opts}}})")) == expected


def test_find_gives_summaries():
    found = Library().run(
        FEW + "return alc.card.find({where={tags={contains='x'}}}), alc.card.find({where={x=1}})"
    )
    assert found == [
        [
            {
                "card_id": "a",
                "pkg": "p",
                "created_at": "2026-01-01T00:00:00Z",
                "model": "m1",
                "pass_rate": 0.5,
            }
        ],
        [],
    ]


@pytest.mark.parametrize(
    ("opts", "words"),
    [
        ("where=5", "where must be an object"),
        ("where={1}", "where must be an object, not an array"),
        ("where={_or={ok=true}}", "where._or must be an array"),
        ("where={_and={5}}", "where._and.1 must be an object"),
        ("where={_not=5}", "where._not must be an object"),
        ("where={n={['in']=5}}", "where.n.in must be an array"),
        ("where={n={exists=1}}", "where.n.exists must be true or false"),
        ("order_by=5", "order_by takes a path, or an array of paths"),
        ("order_by={5}", "order_by takes a path, or an array of paths"),
        ("order_by='-'", "order_by takes a path, or an array of paths"),
        ("limit=-1", "limit must be a whole number from 0"),
        ("offset='x'", "offset must be a whole number from 0"),
    ],
)
def test_find_refuses(opts, words):
    assert Library().error(f"alc.card.find({{{opts}}})") == f"alc.card.find: {words}"


# ---- append


def test_append():
    """New keys join the card and its summary; the whole comes back."""
    library = Library()
    code = """
    alc.card.create({card_id='c', pkg={name='p'}})
    return alc.card.append('c', {stats={pass_rate=1}, note='x', gone=null}), alc.card.get('c'), alc.card.list()"""  # noqa: E501
    merged, found, listed = library.run(code)
    assert merged == found
    assert (found["note"], found["stats"], "gone" in found) == ("x", {"pass_rate": 1}, False)
    assert listed[0]["pass_rate"] == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("'c', {pkg=1, new=2}", "card 'c' already has a 'pkg', and cards are immutable"),
        ("'c', {no=1}", "card 'c' already has a 'no', and cards are immutable"),
        ("'x', {a=1}", "card 'x' not found"),
        ("nil, {a=1}", "card 'nil' not found"),
        ("'c', 5", "the keys to add are not a table of names and values"),
        ("'c', {1, 2}", "the keys to add are not a table of names and values"),
    ],
)
def test_append_refuses(given, words):
    """And nothing of it is written."""
    library = Library()
    library.run("alc.card.create({card_id='c', pkg={name='p'}, no=false})")
    before = dict(library.values)
    assert library.error(f"alc.card.append({given})") == f"alc.card.append: {words}"
    assert library.values == before


# ---- aliases


def test_aliases():
    """Set, list, bind again, read through."""
    library = Library()
    code = """
    local first = alc.card.alias_set('best', 'a', {pkg='p', note='n'})
    alc.card.alias_set('also', 'b')
    alc.card.alias_set('best', 'c', {pkg='q'})
    return first, alc.card.alias_list(), alc.card.alias_list({pkg='q'}), alc.card.alias_list({pkg='p'}),
      alc.card.get_by_alias('best').card_id, alc.card.get_by_alias('none')"""  # noqa: E501
    first, every, some, none, best, nothing = library.run(FEW + code)
    assert first == {"name": "best", "card_id": "a", "pkg": "p", "note": "n", "set_at": NOW}
    assert [(alias["name"], alias["card_id"]) for alias in every] == [("also", "b"), ("best", "c")]
    assert ([alias["name"] for alias in some], none, best, nothing) == (["best"], [], "c", None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("'x', 'nothing'", "card 'nothing' not found"),
        ("'a/b', 'a'", "invalid alias 'a/b'"),
        ("nil, 'a'", "invalid alias 'nil'"),
        ("'x', 'a', 5", "options must be a table"),
    ],
)
def test_alias_set_refuses(given, words):
    assert Library().error(f"{FEW} alc.card.alias_set({given})") == f"alc.card.alias_set: {words}"


def test_an_alias_that_dangles():
    """Somebody took the card away behind our back: an error, not a silent nil."""
    library = Library()
    library.run(FEW + "alc.card.alias_set('best', 'a')")
    del library.values["card/id", "a"]
    words = library.error("alc.card.get_by_alias('best')")
    assert words == "alc.card.get_by_alias: card 'a', which the alias 'best' names, is gone"


# ---- samples


def test_samples():
    """Written once, then filtered, skipped and cut, in this order."""
    library = Library()
    code = """
    local said = alc.card.write_samples('a', {{n=1}, {n=2}, {n=3}, {n=4}, {n=5, x=null}})
    return said, alc.card.read_samples('a'),
      alc.card.read_samples('a', {where={n={gt=1}}, offset=1, limit=2}),
      alc.card.read_samples('b'), alc.card.read_samples('a', {where={n=9}}),
      alc.card.read_samples('a', {where={x={exists=false}}})"""
    said, rows, some, none, unmatched, bare = library.run(FEW + code)
    assert said == {"path": "alc://cards/a/samples", "count": 5}
    assert rows == [{"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}, {"n": 5, "x": None}]
    assert (some, none, unmatched, len(bare)) == ([{"n": 3}, {"n": 4}], [], [], 5)


def test_samples_once():
    library = Library()
    library.run(FEW + "alc.card.write_samples('a', {})")
    words = library.error("alc.card.write_samples('a', {1})")
    assert words == "alc.card.write_samples: card 'a' has samples already; samples are write-once"
    assert library.run("return alc.card.read_samples('a')") == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("write_samples('x', {1})", "write_samples: card 'x' not found"),
        ("write_samples('a', 5)", "write_samples: the samples are not an array"),
        ("write_samples('a', {k=1})", "write_samples: the samples are not an array"),
        ("read_samples('x')", "read_samples: card 'x' not found"),
        ("read_samples('a', {limit=-1})", "read_samples: limit must be a whole number from 0"),
        ("read_samples('a', {where=1})", "read_samples: where must be an object"),
    ],
)
def test_samples_refuse(call, words):
    assert Library().error(f"{FEW} alc.card.{call}") == f"alc.card.{words}"


# ---- lineage

FAMILY = """
local function child(id, prior, relation, rest)
  rest = rest or {}
  rest.card_id, rest.pkg, rest.created_at = id, {name = "p"}, "2026-01-0" .. #id .. "T00:00:00Z"
  if prior then rest.metadata = {prior_card_id = prior, prior_relation = relation} end
  alc.card.create(rest)
end
child("r", nil, nil, {stats = {n = 1}})
child("r1", "r", "tune")
child("r2", "r", "merge")
child("r11", "r1", "tune", {stats = {n = 3}})
child("r12", "r1")
child("lost", "nowhere", "tune")
child("loop", "loop", "tune")
"""


def tree(library: Library, opts: str) -> tuple[str, str, bool]:
    found = library.run(f"{FAMILY} return alc.card.lineage({{{opts}}})")
    nodes = " ".join(f"{node['card_id']}{node['depth']:+}" for node in found["nodes"])
    return (
        nodes,
        " ".join(f"{edge['from']}>{edge['to']}" for edge in found["edges"]),
        found["truncated"],
    )


@pytest.mark.parametrize(
    ("opts", "nodes", "edges", "truncated"),
    [
        ("card_id='r11'", "r11+0 r1-1 r-2", "r11>r1 r1>r", False),
        ("card_id='r11', depth=1", "r11+0 r1-1", "r11>r1", True),
        ("card_id='r11', depth=2", "r11+0 r1-1 r-2", "r11>r1 r1>r", False),
        ("card_id='r11', depth=0", "r11+0", "", True),
        ("card_id='r'", "r+0", "", False),
        (
            "card_id='r', direction='down'",
            "r+0 r1+1 r2+1 r11+2 r12+2",
            "r1>r r2>r r11>r1 r12>r1",
            False,
        ),
        ("card_id='r', direction='down', depth=1", "r+0 r1+1 r2+1", "r1>r r2>r", True),
        ("card_id='r1', direction='both'", "r1+0 r-1 r11+1 r12+1", "r1>r r11>r1 r12>r1", False),
        (
            "card_id='r', direction='down', relation_filter={'tune'}",
            "r+0 r1+1 r11+2",
            "r1>r r11>r1",
            False,
        ),
        # no relation fits no filter
        ("card_id='r12', relation_filter={'tune'}", "r12+0", "", False),
        ("card_id='r2', relation_filter={'tune', 'merge'}", "r2+0 r-1", "r2>r", False),
        ("card_id='lost'", "lost+0", "", False),
        ("card_id='loop'", "loop+0", "", False),
        ("card_id='loop', direction='down'", "loop+0", "", False),
    ],
)
def test_lineage(opts, nodes, edges, truncated):
    assert tree(Library(), opts) == (nodes, edges, truncated)


def test_what_lineage_tells():
    found = Library().run(FAMILY + "return alc.card.lineage({card_id='r11', depth=1})")
    assert found == {
        "root": "r11",
        "nodes": [
            {
                "card_id": "r11",
                "pkg": "p",
                "depth": 0,
                "prior_card_id": "r1",
                "prior_relation": "tune",
                "stats": {"n": 3},
            },
            {
                "card_id": "r1",
                "pkg": "p",
                "depth": -1,
                "prior_card_id": "r",
                "prior_relation": "tune",
            },
        ],
        "edges": [{"from": "r11", "to": "r1", "relation": "tune"}],
        "truncated": True,
    }
    bare = Library().run(
        FAMILY + "return alc.card.lineage({card_id='r', direction='down', include_stats=false})"
    )
    assert not any("stats" in node for node in bare["nodes"])
    assert Library().run("return alc.card.lineage({card_id='x'})") is None


def test_a_lineage_is_one_question():
    """However many cards there are."""
    library = Library()
    library.run(FAMILY + "for i = 1, 50 do child('other' .. i) end")
    library.questions = 0
    library.run("alc.card.lineage({card_id='r1', direction='down'})")
    assert library.questions == 1


@pytest.mark.parametrize(
    ("opts", "words"),
    [
        ("", "card_id is required"),
        (
            "card_id='r', direction='sideways'",
            "a lineage goes up, down or in both directions ('both'), not 'sideways'",
        ),
        ("card_id='r', depth=-1", "depth must be a whole number from 0"),
        ("card_id='r', relation_filter=5", "relation_filter takes an array of names"),
    ],
)
def test_lineage_refuses(opts, words):
    assert Library().error(f"{FAMILY} alc.card.lineage({{{opts}}})") == f"alc.card.lineage: {words}"


NULLS = [
    "#alc.card.list({pkg=null})",
    "#alc.card.find({pkg=null, where=null, order_by=null, limit=null, offset=null})",
    "#alc.card.alias_list({pkg=null})",
    "#alc.card.read_samples('c', {where=null, offset=null, limit=null})",
    "#alc.card.lineage({card_id='c', direction=null, depth=null, include_stats=null,"
    " relation_filter=null}).nodes",
]


@pytest.mark.parametrize("call", NULLS)
def test_options_that_are_null_count_as_none(call):
    """As ctx brings them: what JSON calls null was not said."""
    made = """alc.card.create({card_id='c', pkg={name='p'}}) alc.card.write_samples('c', {{n=1}})
      alc.card.alias_set('x', 'c', {pkg=null, note=null})"""
    assert Library().run(f"{made} return {call}") == 1
