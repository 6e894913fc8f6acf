"""Evals that algocline has stored as files of its home.

    evals/<strategy>_<seconds>.json        the result of a tool: {"status", "result", "stats"}
    evals/<strategy>_<seconds>.meta.json   its figures, for lists

Rules
  1. Files are read as they lie there, and never written.
  2. A file that cannot be read is a problem, with the reason. Cached comparisons are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.errors import BadPackageFile
from everhold.evals.lua_eval import read_lua_report
from everhold.evals.report import EvalReport, EvalUsage
from everhold.evals.totals import EvalInfo
from everhold.packages.lua.atomic_file import parse_json_file, read_text_file

_META: Final = ".meta.json"


class EvalFile(msgspec.Struct, frozen=True):
    """One stored eval: its text as it lies there, its result, and its figures."""

    eval_id: str
    path: Path
    text: str
    doc: dict[str, Any]
    meta: dict[str, Any]

    @property
    def strategy(self) -> str:
        given = self.meta.get("strategy", self.doc.get("strategy"))
        return given if isinstance(given, str) else self.eval_id.rpartition("_")[0] or self.eval_id

    @property
    def created_at(self) -> float:
        """The time in its figures, else in its name, else that of the file."""
        given = self.meta.get("timestamp")
        if isinstance(given, int | float) and not isinstance(given, bool):
            return float(given)
        last = self.eval_id.rpartition("_")[2]
        return float(last) if last.isascii() and last.isdigit() else self.path.stat().st_mtime

    @property
    def report(self) -> dict[str, Any]:
        """The report of evalframe; empty if the eval has failed."""
        given = self.doc.get("result", self.doc)
        return given if isinstance(given, dict) and "aggregated" in given else {}

    def describe(self) -> EvalInfo:
        """The eval as lists show it."""
        report = self.report
        figures = {**_find_figures(report), **_drop_none(self.meta)}
        stats = _as_dict(_as_dict(self.doc.get("stats")).get("auto"))
        total = _whole(figures.get("total_cases"))
        tokens = _as_dict(stats.get("total_tokens")).get("tokens")
        name = report.get("name")
        scenario = name.removeprefix(f"{self.strategy}:") if isinstance(name, str) else ""
        return EvalInfo(
            self.eval_id,
            self.eval_id,  # by which users name it
            scenario,
            self.strategy,
            {},
            "failed" if self.doc.get("status") == "error" else "completed",
            total,
            total,
            _whole(figures.get("passed")),
            _number(figures.get("mean_score")),
            _whole(figures.get("llm_calls", stats.get("llm_calls"))),
            _whole(tokens),
            self.created_at,
            self.created_at,
        )

    def read_report(self) -> EvalReport:
        """The report; raises `BadPackageFile` if the file has none."""
        info = self.describe()
        stats = _as_dict(_as_dict(self.doc.get("stats")).get("auto"))
        try:
            return read_lua_report(
                self.report,
                eval_id=self.eval_id,
                strategy=self.strategy,
                args={},
                usage=EvalUsage(
                    info.llm_calls,
                    total_tokens=info.total_tokens,
                    elapsed_ms=_whole(self.meta.get("elapsed_ms", stats.get("elapsed_ms"))),
                ),
            )
        except msgspec.ValidationError as error:
            raise BadPackageFile(str(self.path), f"it has no report of an eval: {error}") from None


class EvalFolder:
    """The folder `evals/` of a home. It may not exist."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def load(self) -> tuple[list[EvalFile], list[str]]:
        """The evals, newest first, and why other files cannot be read."""
        found = []
        problems = []
        for file in self._list_files():
            try:
                found.append(_load(file))
            except BadPackageFile as error:
                problems.append(f"{file.name}: {error.reason}")
        found.sort(key=lambda one: (one.created_at, one.eval_id), reverse=True)
        return found, problems

    def find(self, eval_id: str) -> EvalFile | None:
        """One eval; raises `BadPackageFile` if its file cannot be read."""
        for file in self._list_files():
            if file.stem == eval_id:
                return _load(file)
        return None

    def _list_files(self) -> list[Path]:
        try:
            files = sorted(self.root.glob("*.json"))
        except OSError:
            return []
        return [
            file
            for file in files
            if not file.name.endswith(_META)
            and not (file.name.startswith("compare_") and "_vs_" in file.name)
        ]


def _load(file: Path) -> EvalFile:
    text = _read(file)
    doc = parse_json_file(file, text)
    if not isinstance(doc, dict):
        raise BadPackageFile(str(file), "it is not an object")
    return EvalFile(file.stem, file, text, doc, _load_meta(file.with_suffix(_META)))


def _load_meta(file: Path) -> dict[str, Any]:
    """The figures beside a result; empty if they cannot be read: the result has them, too."""
    try:
        return _as_dict(parse_json_file(file, _read(file)))
    except BadPackageFile:
        return {}


def _read(file: Path) -> str:
    text = read_text_file(file)
    if text is None:
        raise BadPackageFile(str(file), "it does not exist")
    return text


def _find_figures(report: dict[str, Any]) -> dict[str, Any]:
    """The figures of a list, from a report."""
    aggregated = _as_dict(report.get("aggregated"))
    figures = {
        "pass_rate": aggregated.get("pass_rate"),
        "mean_score": _as_dict(aggregated.get("scores")).get("mean"),
        "total_cases": aggregated.get("total"),
        "passed": aggregated.get("passed"),
    }
    return _drop_none(figures)


def _drop_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else 0.0
