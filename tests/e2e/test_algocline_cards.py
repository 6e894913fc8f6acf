"""The tools for cards of the algocline profile, on a real server over stdio.

Where nothing else is said, the expected values are those that algocline 0.29.1 gives for the same
files and the same calls.
"""

import json

import pytest

from tests.e2e.algocline_harness import House, ProtocolError
from tests.unit.packages.lua.making import committed

TWICE = "twice_sonnet_20260402T101500_0a1b2c"
CAREFUL = "careful_model_20260405T080000_ffeedd"
ROW_TWICE = {
    "card_id": TWICE,
    "created_at": "2026-04-02T10:15:00Z",
    "model": "claude-sonnet",
    "pass_rate": 0.75,
    "pkg": "twice",
    "scenario": "riddles",
}
ROW_CAREFUL = {
    "card_id": CAREFUL,
    "created_at": "2026-04-05T08:00:00Z",
    "pass_rate": 1,  # algocline omits whole numbers in a list
    "pkg": "careful",
}


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    yield made
    made.close()


def call(wire, tool, **arguments):
    """The value that a tool gives."""
    refused, text = wire.call(tool, **arguments)
    assert not refused, text
    value = json.loads(text)
    compact = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert text == compact
    return value


def refused(wire, tool, **arguments):
    """The words with which a tool refuses."""
    failed, text = wire.call(tool, **arguments)
    assert failed, text
    return text


def add_card(house, pkg, card_id, text):
    file = house.home / "cards" / pkg / f"{card_id}.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def snapshot(folder):
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_cards_of_a_home_are_read_as_they_lie_there(house):
    """Listed, shown, searched and walked through, without an import."""
    wire = house.serve()
    assert call(wire, "alc_card_list") == [ROW_CAREFUL, ROW_TWICE]
    assert call(wire, "alc_card_list", pkg="twice") == [ROW_TWICE]
    assert call(wire, "alc_card_list", pkg="none") == []
    card = call(wire, "alc_card_get", card_id=TWICE)
    assert (card["params"], card["stats"]["pass_rate"]) == ({"max_tokens": 256}, 0.75)
    assert call(wire, "alc_card_get_by_alias", name="best")["card_id"] == CAREFUL
    assert call(wire, "alc_card_alias_list", pkg="none") == []
    lineage = call(wire, "alc_card_lineage", card_id=CAREFUL)
    assert [node["depth"] for node in lineage["nodes"]] == [0, -1]
    assert lineage["edges"] == [{"from": CAREFUL, "relation": "replaces", "to": TWICE}]
    assert lineage["truncated"] is False
    cut = call(wire, "alc_card_lineage", card_id=TWICE, direction="down", depth=0)
    assert (len(cut["nodes"]), cut["truncated"]) == (1, True)
    none = call(wire, "alc_card_lineage", card_id=CAREFUL, relation_filter=["other"])
    assert none["edges"] == []


FINDS = (
    ({}, [CAREFUL, TWICE]),
    ({"where": {"stats": {"pass_rate": {"gte": 0.8}}}}, [CAREFUL]),
    ({"where": '{"stats": {"pass_rate": {"lt": 0.8}}}'}, [TWICE]),
    ({"where": {"_not": {"pkg": {"name": "twice"}}}}, [CAREFUL]),
    ({"order_by": "stats.pass_rate"}, [TWICE, CAREFUL]),
    ({"order_by": ["-stats.pass_rate", "created_at"]}, [CAREFUL, TWICE]),
    ({"limit": 1}, [CAREFUL]),
    ({"offset": 1}, [TWICE]),
    ({"limit": 0}, []),
    ({"pkg": "twice", "where": {"model": {"id": {"starts_with": "claude"}}}}, [TWICE]),
)


def test_find(house):
    wire = house.serve()
    for given, expected in FINDS:
        found = call(wire, "alc_card_find", **given)
        assert [row["card_id"] for row in found] == expected, given


def test_samples(house):
    """Filtered, then paged; none are an empty array."""
    wire = house.serve()
    rows = call(wire, "alc_card_samples", card_id=TWICE)
    assert [row["case"] for row in rows] == ["a", "b", "c"]
    assert call(wire, "alc_card_samples", card_id=TWICE, offset=1, limit=1) == rows[1:2]
    some = call(wire, "alc_card_samples", card_id=TWICE, where={"case": {"in": ["a", "c"]}})
    assert some == [rows[0], rows[2]]
    assert call(wire, "alc_card_samples", card_id=CAREFUL) == []


def test_what_is_written_goes_to_the_database_and_not_to_the_files(house):
    """And is there after the server was killed; Lua programs see it too."""
    before = snapshot(house.home / "cards")
    wire = house.serve()
    fields = {"note": {"by": "me"}, "nothing": None}
    merged = call(wire, "alc_card_append", card_id=TWICE, fields=fields)
    assert merged["note"] == {"by": "me"} and "nothing" not in merged
    alias = call(wire, "alc_card_alias_set", name="best", card_id=TWICE, pkg="twice", note="n")
    assert alias == {
        "name": "best",
        "card_id": TWICE,
        "pkg": "twice",
        "note": "n",
        "set_at": alias["set_at"],
    }
    wire.kill()
    wire = house.serve()
    assert call(wire, "alc_card_get_by_alias", name="best") == merged
    assert call(wire, "alc_card_list") == [ROW_CAREFUL, ROW_TWICE]
    code = f"return {{alc.card.get('{TWICE}').note.by, #alc.card.read_samples('{TWICE}')}}"
    assert call(wire, "alc_run", code=code)["result"] == ["me", 3]
    assert snapshot(house.home / "cards") == before


def test_a_card_of_a_program_is_a_card_of_the_tools(house):
    """And its id is taken for programs, whoever has the card."""
    wire = house.serve()
    code = (
        "local id = alc.card.create({pkg = {name = 'cot'}, stats = {pass_rate = 0.5}}).card_id"
        " alc.card.write_samples(id, {{case = 'x'}}) return id"
    )
    card_id = call(wire, "alc_run", code=code)["result"]
    assert card_id in [row["card_id"] for row in call(wire, "alc_card_list", pkg="cot")]
    assert call(wire, "alc_card_samples", card_id=card_id) == [{"case": "x"}]
    taken = f"alc.card.create({{card_id = '{TWICE}', pkg = {{name = 'other'}}}})"
    ended = call(wire, "alc_run", code=taken)
    assert f"card '{TWICE}' already exists, and cards are immutable" in ended["error"]
    twice = f"alc.card.write_samples('{TWICE}', {{{{n = 1}}}})"
    assert "write-once" in call(wire, "alc_run", code=twice)["error"]


REFUSALS = (
    ("get", {"card_id": "none"}, "card 'none' not found"),
    ("get", {"card_id": "../x"}, "not found"),
    ("samples", {"card_id": "none"}, "card 'none' not found"),
    ("lineage", {"card_id": "none"}, "card 'none' not found"),
    (
        "lineage",
        {"card_id": TWICE, "direction": "left"},
        "a lineage goes up, down or in both directions",
    ),
    ("append", {"card_id": "none", "fields": {"x": 1}}, "card 'none' not found"),
    ("append", {"card_id": TWICE, "fields": {"stats": 1}}, "already has a 'stats'"),
    ("append", {"card_id": TWICE, "fields": [1]}, "fields must be an object"),
    ("alias_set", {"name": "x", "card_id": "none"}, "card 'none' not found"),
    ("alias_set", {"name": "a/b", "card_id": TWICE}, "invalid alias 'a/b'"),
    ("get_by_alias", {"name": "none"}, "alias 'none' not found"),
    ("list", {"pkg": "a/b"}, "invalid pkg 'a/b'"),
    ("find", {"where": 5}, "where must be an object"),
    ("find", {"where": {"_or": 1}}, "where._or must be an array"),
    ("find", {"where": {"n": {"$gt": 1}}}, "unknown operator '$gt' at where.n"),
    ("find", {"where": {"n": {"gt": 1, "most": 2}}}, "unknown operator 'most' at where.n"),
    ("find", {"where": {"n": {"in": 5}}}, "where.n.in must be an array"),
    ("find", {"order_by": 5}, "order_by takes a path, or an array of paths"),
    ("install", {"url": "/nowhere"}, "folder /nowhere does not exist"),
    ("sink_backfill", {"sink": "file:///x"}, "unknown sink: file:///x"),
)
MISTYPED = (
    ("get", {}),
    ("list", {"pkg": 5}),
    ("find", {"limit": -1}),
    ("append", {"card_id": "x"}),
)


def test_refusals(house):
    """Each says what is wrong, and nothing is written."""
    wire = house.serve()
    for tool, given, words in REFUSALS:
        assert words in refused(wire, f"alc_card_{tool}", **given), (tool, given)
    for tool, given in MISTYPED:
        with pytest.raises(ProtocolError) as caught:
            wire.call(f"alc_card_{tool}", **given)
        assert caught.value.code == -32602
    assert call(wire, "alc_card_list") == [ROW_CAREFUL, ROW_TWICE]


def test_a_broken_card_among_good_ones_is_named(house):
    """With its reason, in the list and by its id; the good ones are there."""
    file = add_card(house, "twice", "broken", "= 1")
    wire = house.serve()
    *good, bad = call(wire, "alc_card_list")
    assert good == [ROW_CAREFUL, ROW_TWICE]
    assert (bad["card_id"], bad["pkg"]) == ("broken", "twice")
    assert "Invalid statement" in bad["error"]
    assert str(file) in refused(wire, "alc_card_get", card_id="broken")
    told = wire.ask("tools/call", {"name": "alc_card_find", "arguments": {}})["result"]
    assert len(json.loads(told["content"][0]["text"])) == 2
    (problem,) = told["_meta"]["everhold/problems"]
    assert problem.startswith(f"{file}: ")
    ended = call(wire, "alc_run", code="alc.card.create({card_id='broken', pkg={name='x'}})")
    assert "already exists" in ended["error"]


def test_broken_samples_name_their_line(house):
    (house.home / "cards" / "twice" / f"{TWICE}.samples.jsonl").write_text("{}\n\n{\n")
    words = refused(house.serve(), "alc_card_samples", card_id=TWICE)
    assert words.endswith(f"{TWICE}.samples.jsonl, line 3: not JSON")


@pytest.mark.parametrize("by_git", [False, True])
def test_install(house, by_git):
    """A collection from a folder or a repository: what is here is skipped, the rest is installed
    with its samples, and a broken card is named.
    """
    source = house.base / "collection"
    (source / "new").mkdir(parents=True)
    (source / "alc_cards.toml").touch()
    head = 'schema_version = "card/v0"\ncreated_at = "2026-05-01T00:00:00Z"\n'
    (source / "new" / "fresh.toml").write_text(head)
    (source / "new" / "fresh.samples.jsonl").write_text('{"x":1}\n')
    (source / "new" / "other.toml").write_text("x = 1\n")  # no card
    (source / "new" / "odd.toml").write_text("= 1\n")
    (source / "twice").mkdir()
    (source / "twice" / f"{TWICE}.toml").write_text(head)
    if by_git:
        committed(source)
    url = f"file://{source}" if by_git else str(source)
    wire = house.serve()
    made = call(wire, "alc_card_install", url=url)
    (failed,) = made.pop("failed_cards")
    assert (failed["pkg"], failed["card_id"]) == ("new", "odd")
    assert made == {
        "installed_cards": ["fresh"],
        "mode": "card_collection",
        "packages": ["new", "twice"],
        "skipped_cards": [TWICE],
        "source": url,
    }
    assert call(wire, "alc_card_samples", card_id="fresh") == [{"x": 1}]
    assert call(wire, "alc_card_get", card_id=TWICE)["stats"]["pass_rate"] == 0.75
    assert call(wire, "alc_card_install", url=url)["installed_cards"] == []
    known = json.loads((house.home / "hub_registries.json").read_text())["registries"]
    assert (
        (url, "card_install") in [(one["source"], one.get("origin")) for one in known]
    ) is by_git


def test_cards_of_an_installed_package_are_there_at_once(house):
    place = house.base / "brings"
    (place / "cards").mkdir(parents=True)
    (place / "init.lua").write_text("return {}")
    (place / "cards" / "b1.toml").write_text('schema_version = "card/v0"\n')
    sink = house.base / "sink"
    wire = house.serve(ALC_CARD_SINKS=f"file://{sink}")
    assert call(wire, "alc_pkg_install", url=str(place))["cards_installed"] == ["b1"]
    assert call(wire, "alc_card_get", card_id="b1")["pkg"] == {"name": "brings"}
    assert (sink / "brings" / "b1.toml").is_file()


def test_sinks(house):
    """Every write is copied in algocline's form, and counted; a backfill adds what is missing."""
    sink = house.base / "my sink"
    address = f"file://{house.base}/my%20sink"
    wire = house.serve(ALC_CARD_SINKS=f"{address}|s3://no")
    code = """
      local id = alc.card.create({card_id = 'made', pkg = {name = 'cot'}, n = {x = {1, 2.5}}}).card_id
      alc.card.write_samples(id, {{a = 1}, {a = 2}})
      alc.card.append(id, {note = 'n'})
      alc.card.alias_set('mine', id)"""  # noqa: E501
    call(wire, "alc_run", code=code)
    (stats,) = call(wire, "alc_stats")["card_sinks"]
    every = {"created": 1, "appended": 1, "samples": 1, "aliases": 1}
    none = dict.fromkeys(every, 0)
    assert stats == {"sink": address, "ok": every, "err": none, "last_error": None}
    dry = call(wire, "alc_card_sink_backfill", sink=address, dry_run=True)
    assert not (sink / "twice").exists()
    done = call(wire, "alc_card_sink_backfill", sink=address)
    assert done == dry
    assert (done["pushed"], done["pushed_samples"]) == ([CAREFUL, TWICE], [TWICE])
    assert (done["skipped"], done["failed"]) == (["made"], [])
    for name in (f"twice/{TWICE}.toml", f"twice/{TWICE}.samples.jsonl"):
        assert (sink / name).read_bytes() == (house.home / "cards" / name).read_bytes()
    again = call(wire, "alc_card_sink_backfill", sink=address)
    assert (again["pushed"], len(again["skipped"])) == ([], 3)
    made = call(wire, "alc_card_get", card_id="made")
    # a home that is the sink has the same cards
    wire.close()
    sink.rename(house.base / "cards")
    other = House.serve(house, ALC_HOME=str(house.base), EVERHOLD_DATABASE_URL="memory://")
    assert call(other, "alc_card_get_by_alias", name="mine") == made
    assert call(other, "alc_card_samples", card_id="made") == [{"a": 1}, {"a": 2}]


def test_a_sink_that_fails_fails_nothing_else(house):
    """It is counted, and its last error is shown."""
    (house.base / "file").touch()
    wire = house.serve(ALC_CARD_SINKS=f"file://{house.base}/file")
    ended = call(wire, "alc_run", code="alc.card.create({card_id = 'c', pkg = {name = 'p'}})")
    assert ended["status"] == "completed"
    (stats,) = call(wire, "alc_stats")["card_sinks"]
    assert (stats["ok"]["created"], stats["err"]["created"]) == (0, 1)
    assert stats["last_error"]["kind"] == "created" and "cannot be" in stats["last_error"]["msg"]


def test_resources(house):
    """A card and its samples, without an import."""
    wire = house.serve()

    def read(uri):
        told = wire.ask("resources/read", {"uri": uri})
        return json.loads(told["result"]["contents"][0]["text"])

    assert read(f"alc://cards/{TWICE}")["card_id"] == TWICE
    assert [row["case"] for row in read(f"alc://cards/{TWICE}/samples?offset=1&limit=1")] == ["b"]
    told = wire.ask("resources/read", {"uri": "alc://cards/none/samples"})
    assert told["error"]["message"] == "card 'none' not found"
