"""`everhold schedule`, `trigger` and `emit`."""

import json

import pytest

NIGHTLY = ("schedule", "add", "nightly", "shop.py:refund", "order=7", "--cron", "0 3 * * *")


def test_a_schedule_is_made_listed_paused_resumed_and_removed(cli):
    made = cli(*NIGHTLY, "--timezone", "Europe/Berlin", "--label", "shop=1")
    assert made.code == 0
    assert made.out.startswith("nightly: 0 3 * * * (Europe/Berlin), next 20")
    listed = cli("schedule").out
    assert "nightly" in listed
    assert "shop.py:refund with 1 argument" in listed
    assert cli("schedule", "pause", "nightly").out == "nightly: paused\n"
    assert cli("schedule", "list", "--json").json["schedules"][0]["state"] == "paused"
    assert cli("schedule", "resume", "nightly").out.startswith("nightly: next 20")
    assert cli("schedule", "remove", "nightly").out == "removed nightly\n"
    assert "no schedules" in cli("schedule").out


def test_the_json_of_a_schedule_has_moments_in_milliseconds(cli):
    made = cli(*NIGHTLY, "--json").json
    assert (made["name"], made["revision"], made["do"]["args"]) == ("nightly", 1, {"order": "7"})
    assert made["next_at"] % 86_400_000 == 3 * 3_600_000
    moments = cli("schedule", "next", "nightly", "-n", "3", "--json").json["moments"]
    assert [later - made["next_at"] for later in moments] == [0, 86_400_000, 172_800_000]
    assert len(cli("schedule", "next", "nightly").out.splitlines()) == 5


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--cron", "0 3 * *"), 2, "bad_schedule"),
        (("--cron", "every day"), 2, "bad_schedule"),
        (("--cron", "0 3 * * *", "--timezone", "Mars"), 2, "unknown_timezone"),
        ((), 2, "say when"),
        (("--cron", "0 3 * * *", "--every", "5m"), 2, "say when"),
        (("--every", "soon"), 2, "not a duration"),
        (("--every", "0.1"), 2, "bad_schedule"),
        (("--at", "tomorrow"), 2, "is not a time"),
        (("--cron", "0 3 * * *", "--overlap", "queue", "--catch-up", "none"), 2, "bad_schedule"),
        (("--cron", "0 3 * * *", "--signal", "x"), 2, "need --feed"),
        (("--cron", "0 3 * * *", "--feed", "seven"), 2, "name what to start or feed"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_told_in_a_line(cli, words, code, told):
    said = cli("schedule", "add", "x", "shop.py:refund", "order=7", *words)
    assert said.code == code
    assert told in said.err
    assert "Traceback" not in said.err
    assert cli("schedule", "--json").out.find('"x"') == -1


def test_a_program_that_is_not_there_and_arguments_that_do_not_fit_are_told(cli):
    gone = cli("schedule", "add", "x", "shop.py:nothing", "--cron", "@daily")
    assert (gone.code, "unknown_program" in gone.err) == (2, True)
    wrong = cli("schedule", "add", "x", "shop.py:refund", "nonsense=1", "--cron", "@daily")
    assert (wrong.code, "It takes order: str" in wrong.err) == (2, True)


def test_a_schedule_that_is_not_there_is_told(cli):
    cli(*NIGHTLY)
    for verb in ("pause", "resume", "remove", "next"):
        said = cli("schedule", verb, "weekly")
        assert (said.code, "unknown_schedule" in said.err) == (2, True)


def test_a_schedule_may_feed_a_session(cli):
    cli("run", "shop.py:waits", "--key", "w")
    made = cli(
        "schedule",
        "add",
        "go",
        "--feed",
        "w",
        "--signal",
        "go",
        "--value",
        '{"n": 1}',
        "--every",
        "1h",
        "--json",
    )
    assert made.json["do"] == {"do": "feed", "session": "w", "signal": "go", "value": {"n": 1}}
    assert "signal go to w" in cli("schedule").out
    assert "0:00" in cli("schedule", "add", "chat", "--feed", "w", "--every", "90m").out
    once = cli(
        "schedule", "add", "once", "shop.py:waits", "--at", "2027-01-01T09:00", "--json"
    ).json
    assert once["when"] == "once at 2027-01-01 09:00:00 UTC"


def test_an_event_starts_what_it_triggers_once(cli):
    assert cli("trigger", "add", "order.paid", "shop.py:waits", "--where", "tier=gold").code == 0
    assert "order.paid waits start shop.py:waits tier=gold" in " ".join(cli("trigger").out.split())
    first = cli("emit", "order.paid", '{"tier": "gold"}', "--key", "7")
    assert "waits: started" in first.out
    again = cli("emit", "order.paid", '{"tier": "gold"}', "--key", "7")
    assert "emitted before" in again.out
    assert len(cli("sessions", "--json").json["sessions"]) == 1
    other = cli("emit", "order.paid", '{"tier": "iron"}', "--json").json
    assert (other["new"], other["handovers"]) == (True, [])


def test_an_event_feeds_a_session(cli):
    cli("run", "shop.py:waits", "--key", "w")
    cli("trigger", "add", "order.paid", "--feed", "w", "--signal", "go", "--name", "tell")
    assert "tell: started" in cli("emit", "order.paid", '"now"').out
    assert "now" in cli("show", "w").out


def test_a_payload_comes_from_standard_input(cli):
    cli(*NIGHTLY)
    said = cli("emit", "order.paid", "-", "--json", piped='{"order": 7}')
    assert said.json["new"] is True
    wrong = cli("emit", "order.paid", "{")
    assert (wrong.code, "not JSON" in wrong.err) == (2, True)


def test_a_conflict_and_a_blank_key_are_told(cli):
    cli(*NIGHTLY)
    cli("emit", "order.paid", "1", "--key", "7")
    conflict = cli("emit", "order.paid", "2", "--key", "7")
    assert (conflict.code, "event_conflict" in conflict.err) == (2, True)
    blank = cli("emit", "order.paid", "2", "--key", " ")
    assert (blank.code, "not blank" in blank.err) == (2, True)


def test_what_could_not_be_handed_over_is_listed_tried_again_and_dropped(cli):
    cli("trigger", "add", "order.paid", "shop.py:refund", "--give", "wrong")
    said = cli("emit", "order.paid", "1", "--key", "7")
    assert "refund: waiting · invalid arguments for 'refund'" in said.out
    (one,) = cli("trigger", "log", "--state", "waiting", "--json").json["handovers"]
    assert one["id"] == "order.paid/refund/7"
    assert "waiting" in cli("trigger", "retry", one["id"]).out
    assert "invalid arguments" in json.dumps(cli("trigger", "retry", one["id"], "--json").json)
    assert cli("trigger", "drop", one["id"]).out == "dropped order.paid/refund/7\n"
    assert "no handovers" in cli("trigger", "log").out
    assert cli("trigger", "drop", one["id"]).code == 2


def test_a_trigger_is_disabled_enabled_and_removed(cli):
    cli("trigger", "add", "order.paid", "shop.py:waits")
    assert cli("trigger", "disable", "order.paid", "waits").out == "order.paid → waits: disabled\n"
    assert "disabled" in cli("trigger").out
    assert cli("trigger", "enable", "order.paid", "waits", "--json").json["enabled"] is True
    assert cli("trigger", "remove", "order.paid", "waits").out == "removed waits of order.paid\n"
    assert "no triggers" in cli("trigger", "list").out
    gone = cli("trigger", "remove", "order.paid", "waits")
    assert (gone.code, "unknown_trigger" in gone.err) == (2, True)


def test_options_belong_to_the_verb(cli):
    assert (
        "options belong after the subcommand: everhold schedule list"
        in cli("schedule", "--json", "list").err + cli("schedule", "--json", "list").out
    )
    assert (
        "options belong after the subcommand: everhold trigger list"
        in cli("trigger", "--json", "list").err + cli("trigger", "--json", "list").out
    )
