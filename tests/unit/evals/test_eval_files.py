"""Evals in files of algocline."""

import json
import shutil
from pathlib import Path

import pytest

from everhold.errors import BadPackageFile
from everhold.evals import compare_reports
from everhold.evals.eval_files import EvalFolder

DATA = Path(__file__).parents[2] / "data" / "algocline-home" / "evals"
TWICE = "twice_1775124900"
CAREFUL = "careful_1775212800"


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(DATA, tmp_path / "evals")
    return tmp_path / "evals"


def test_files_are_listed_newest_first(folder):
    """Cached comparisons and the figures beside a result are not evals of their own."""
    found, problems = EvalFolder(folder).load()
    assert [one.eval_id for one in found] == [CAREFUL, TWICE]
    assert problems == []
    assert EvalFolder(folder / "nothing").load() == ([], [])


def test_the_figures_beside_a_result_are_not_needed(folder):
    """Without them the figures come from the result, and the time from the name."""
    info = EvalFolder(folder).find(TWICE).describe()
    assert (info.program, info.scenario, info.created_at) == ("twice", "riddles", 1775124900)
    assert (info.total, info.passed, info.mean_score) == (4, 3, 0.75)
    assert (info.llm_calls, info.total_tokens, info.state) == (8, 305, "completed")


def test_what_cannot_be_read_is_named(folder):
    """The rest is listed."""
    (folder / "broken_1.json").write_text("{")
    (folder / "list_2.json").write_text("[]")
    (folder / "text_3.json").write_bytes(b"\xff")
    (folder / "deep_4.json").write_text("[" * 100_000)
    found, problems = EvalFolder(folder).load()
    assert len(found) == 2
    assert [line.partition(":")[0] for line in problems] == [
        *("broken_1.json", "deep_4.json", "list_2.json", "text_3.json")
    ]
    assert problems[2] == "list_2.json: it is not an object"
    with pytest.raises(BadPackageFile, match="it is not JSON"):
        EvalFolder(folder).find("broken_1")


@pytest.mark.parametrize("name", ["nothing", "../evals/" + TWICE, f"{CAREFUL}.meta", ""])
def test_only_a_name_of_the_list_is_found(folder, name):
    assert EvalFolder(folder).find(name) is None


def test_a_failed_eval(folder):
    """It has no report, and says so."""
    (folder / "mine_5.json").write_text('{"status": "error", "error": "no"}')
    found = EvalFolder(folder).find("mine_5")
    assert (found.describe().state, found.describe().program) == ("failed", "mine")
    with pytest.raises(BadPackageFile, match="it has no report"):
        found.read_report()


def test_a_report(folder):
    """Its figures are those of the file, not computed again."""
    report = EvalFolder(folder).find(TWICE).read_report()
    assert report.aggregated.ci_95.lower == 0.25  # not what everhold would say
    assert report.aggregated.by_tag["short"].passed == 2
    assert [one.case.name for one in report.failures] == ["r4"]
    assert (report.eval_id, report.scenario, report.usage.llm_calls) == (TWICE, "riddles", 8)


def test_files_are_compared(folder):
    """Case by case, as evals of everhold are."""
    evals = EvalFolder(folder)
    found = compare_reports(evals.find(TWICE).read_report(), evals.find(CAREFUL).read_report())
    assert (found.method, found.pairs, found.better) == ("paired bootstrap", 4, "none")
    assert found.delta_mean == -0.25


def test_figures_of_other_types_are_left_out(folder):
    """A file of another version does not end the listing."""
    (folder / "odd_x.json").write_text(
        json.dumps({"result": {"aggregated": {"total": "4", "scores": []}, "name": 7}})
    )
    (folder / "odd_x.meta.json").write_text('{"strategy": 5, "timestamp": true, "passed": -1}')
    info = EvalFolder(folder).find("odd_x").describe()
    assert (info.program, info.scenario, info.total, info.passed) == ("odd", "", 0, 0)
