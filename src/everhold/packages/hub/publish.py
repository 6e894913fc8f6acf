"""Publishes a collection: its index (`index.py`), and its documents.

    narrative   a page per package, in narrative/ of the output folder   always
    llms        llms.txt and llms-full.txt                              always
    hub         an entry per package, in hub/
    context7    context7.json in the folder of the packages
    devin       .devin/wiki.json, there
    luacats     types/alc_shapes.d.lua, there
    lint        the rules of `lint.py`; errors are reported, and with lint_strict nothing is written
    lint_only   the rules, without any file

`gendoc` makes documents of the packages that hub_index.json names; `dist` makes the index and the
documents together. A preset of `dist` stands for its options: `publish`, which [hub.dist.presets.publish]
in alc.toml may change, or a preset of alc.toml.
"""  # noqa: E501

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.core.unknown_names import find_close_name
from everhold.errors import BadPackage, BadPackageFile
from everhold.packages.hub.compat import SHAPES_VERSION, is_in_range
from everhold.packages.hub.document import (
    GENERATED,
    DocumentedPackage,
    dump_entry,
    format_all_pages,
    format_list,
    format_page,
)
from everhold.packages.hub.evaluate import NotEvaluated, PackageEvaluator
from everhold.packages.hub.index import (
    INDEX_FILE,
    ReportProgress,
    build_index,
    check_index_target,
    check_source_dir,
    dump_index,
    keep_index_time,
    parse_index,
    report_index,
)
from everhold.packages.hub.lint import check_package, format_violations
from everhold.packages.hub.projection import (
    Projections,
    dump_context7,
    dump_wiki,
    load_hub_options,
    load_projection_file,
    load_projections,
)
from everhold.packages.lua.atomic_file import read_text_file, write_together
from everhold.packages.lua.meta import read_meta_fields
from everhold.packages.lua.paths import PROJECT_FILE, expand_path, find_project_root, get_alc_home
from everhold.programs.lua.search_path import INIT_FILE

PROJECTIONS: Final = (
    *("hub", "context7", "devin", "lint", "lint_only", "luacats", "narrative", "llms"),
)
#: The version of the presets that everhold has.
PRESET_CATALOG_VERSION: Final = "preset-catalog@2026-04-23"

_SHAPES_VERSION_LINE: Final = re.compile(r'\bVERSION\s*=\s*"([^"]*)"')


class Preset(msgspec.Struct, forbid_unknown_fields=True):
    """Options of `dist`; None: not said."""

    projections: list[str] | None = None
    config_path: str | None = None
    lint_strict: bool | None = None


#: The presets of everhold.
PRESETS: Final = {"publish": Preset(["hub", "lint"], None, False)}


class _Documents(msgspec.Struct):
    """All that a run of gendoc makes, before anything is written."""

    source_dir: Path
    out_dir: Path
    files: dict[Path, str] = {}
    done: list[str] = []  # lines for the user
    violations: list[str] = []
    warnings: list[str] = []
    errors: int = 0


def hub_gendoc(
    source_dir: str | Path,
    out_dir: str | Path | None = None,
    *,
    projections: Sequence[str] | None = None,
    config_path: str | Path | None = None,
    lint_strict: bool = False,
    progress: ReportProgress | None = None,
) -> dict[str, Any]:
    """Write the documents of the packages in `source_dir`, by default into its folder docs/.

    Its hub_index.json names the packages. Nothing is written if a package cannot be loaded.
    """
    wanted = _check_projections(projections)
    source = check_source_dir(source_dir)
    folders = _read_index(source)
    config = None
    if config_path is not None:
        config = _find_config(config_path, source, find_project_root(start=source))
    made = _make(source, out_dir, folders, wanted, config, lint_strict, progress)
    written = _write(made.files)
    return _report(made, source_dir, out_dir, written)


def hub_dist(
    source_dir: str | Path,
    output_path: str | Path | None = None,
    out_dir: str | Path | None = None,
    *,
    preset: str | None = None,
    project: str | Path | None = None,
    projections: Sequence[str] | None = None,
    config_path: str | Path | None = None,
    lint_strict: bool | None = None,
    progress: ReportProgress | None = None,
) -> dict[str, Any]:
    """Write the index to `output_path` and the documents to `out_dir`, all or nothing.

    What a preset says applies where no argument does.
    """
    source = check_source_dir(source_dir)
    root = _find_root(project, source)
    chosen, origins = _choose_preset(preset, root)
    names = chosen.projections if projections is None else list(projections)
    named = chosen.config_path if config_path is None else config_path
    config = None if named is None else _find_config(named, source, root)
    strict = chosen.lint_strict if lint_strict is None else lint_strict
    wanted = _check_projections(names)
    target = None if output_path is None else check_index_target(output_path)
    built = build_index(source, get_alc_home())
    if target is not None:
        keep_index_time(built.index, target)
    folders = {one.name: built.folders[one.name] for one in built.index.packages}
    made = _make(source, out_dir, folders, wanted, config, bool(strict), progress)
    files = made.files if target is None else {**made.files, target: dump_index(built.index)}
    written = _write(files)
    report: dict[str, Any] = {
        "reindex": report_index(built, output_path, source_dir),
        "gendoc": _report(made, source_dir, out_dir, written),
        "preset_catalog_version": PRESET_CATALOG_VERSION,
    }
    if preset:
        report["preset"] = {
            "name": preset,
            "catalog_version": PRESET_CATALOG_VERSION,
            "resolved": {
                "projections": names,
                "config_path": None if config is None else str(config),
                "lint_strict": strict,
                "project_root": None if root is None else str(root),
                "overrides_source": origins,
                "preset_ref": None,
            },
        }
    return report


# ---- presets


def _find_root(project: str | Path | None, source: Path) -> Path | None:
    """The project: the one that is named, else that of the packages, else that of this folder."""
    if project is not None or os.environ.get("ALC_PROJECT_ROOT"):
        return find_project_root(project)
    return find_project_root(start=source) or find_project_root()


def _choose_preset(name: str | None, root: Path | None) -> tuple[Preset, list[str]]:
    """The options of a preset, and what they come from."""
    dist = load_hub_options(root).dist
    where = str((root or Path()) / PROJECT_FILE)
    version = dist.get("preset_catalog_version")
    if version and version != PRESET_CATALOG_VERSION:
        raise BadPackageFile(
            where,
            f"hub.dist.preset_catalog_version is '{version}', not '{PRESET_CATALOG_VERSION}'",
            "Check what the presets mean now, then change the line.",
        )
    origins = [] if root is None else ["project_root"]
    name = (name or "").strip()
    if not name:
        return Preset(), origins
    own = dist.get("presets", {})
    if not isinstance(own, dict):
        raise BadPackageFile(where, "[hub.dist.presets] should be a table of presets")
    if name not in own and name not in PRESETS:
        known = sorted({*PRESETS, *own})
        raise BadPackage(
            f"dist: unknown preset '{name}'; there are {', '.join(known)}",
            _suggest(name, known) or f"A project's own are in {PROJECT_FILE}: [hub.dist.presets]",
        )
    chosen = Preset()
    if name in own:
        origins.append(PROJECT_FILE)
        try:
            chosen = msgspec.convert(own[name], Preset)
        except msgspec.ValidationError as error:
            raise BadPackageFile(
                where, f"[hub.dist.presets.{name}] cannot be read: {error}"
            ) from None
    if name in PRESETS:
        origins.append("builtin")
        basis = msgspec.structs.asdict(PRESETS[name])
        said = {
            key: value for key, value in msgspec.structs.asdict(chosen).items() if value is not None
        }
        chosen = Preset(**{**basis, **said})
    return chosen, origins


def _suggest(name: str, known: Sequence[str]) -> str:
    close = find_close_name(name, known)
    return f"Did you mean '{close}'?" if close else ""


def _find_config(config: str | Path, source: Path, root: Path | None) -> Path:
    """A relative path is in the folder of the packages, in the project, or in this folder."""
    starts = (source, *([] if root is None else [root]), Path.cwd())
    places = [expand_path(config, start) for start in starts]
    return next((place for place in places if place.is_file()), places[0])


def _check_projections(names: Sequence[str] | None) -> frozenset[str]:
    for name in names or ():
        if name not in PROJECTIONS:
            raise BadPackage(
                f"gendoc: unknown projection '{name}'; there are {', '.join(PROJECTIONS)}",
                _suggest(name, PROJECTIONS) or "Nothing was changed.",
            )
    return frozenset(names or ())


# ---- making documents


def _read_index(source: Path) -> dict[str, Path]:
    """The folder of each package that hub_index.json names."""
    file = source / INDEX_FILE
    text = read_text_file(file)
    if text is None:
        raise BadPackage(
            f"gendoc: hub_index.json not found in {source}",
            f"Make it first: everhold hub reindex {source}, or alc_hub_reindex with source_dir"
            " and output_path. `hub dist` does both.",
        )
    built = build_index(source, get_alc_home())
    folders: dict[str, Path] = {}
    for one in parse_index(text, str(file)).packages:
        if one.name not in built.folders:
            raise BadPackage(
                f"gendoc: hub_index.json lists '{one.name}', but {source} has no such package",
                f"Make the index again: everhold hub reindex {source}",
            )
        folders[one.name] = built.folders[one.name]
    return folders


def _make(
    source: Path,
    out_dir: str | Path | None,
    folders: dict[str, Path],
    wanted: frozenset[str],
    config: Path | None,
    strict: bool,
    progress: ReportProgress | None,
) -> _Documents:
    if not folders:
        raise BadPackage(
            f"gendoc: no folder in {source} is a package",
            "Each package is a folder with an init.lua whose M.meta has a name.",
        )
    made = _Documents(source, expand_path(out_dir or source / "docs"))
    root = find_project_root(start=source)
    said = load_projections(root) if config is None else load_projection_file(config)
    _check_shapes_version(source)
    made.warnings += _check_compat(folders)
    with PackageEvaluator(source) as evaluator:
        packages = _load_all(evaluator, folders, wanted, strict, made, progress)
        if "lint_only" not in wanted:
            if "luacats" in wanted:
                made.files[source / "types" / "alc_shapes.d.lua"] = evaluator.write_types()
            title = load_hub_options(root).name or source.resolve().name
            made.files |= _make_files(made, packages, wanted, said, title)
    made.warnings += _find_stale(made)
    return made


def _load_all(
    evaluator: PackageEvaluator,
    folders: dict[str, Path],
    wanted: frozenset[str],
    strict: bool,
    made: _Documents,
    progress: ReportProgress | None,
) -> list[DocumentedPackage]:
    """Load and check all packages; raises `BadPackage` with every one that cannot be loaded."""
    packages = []
    failures = []
    with_lint = strict or bool({"lint", "lint_only"} & wanted)
    warned = 0
    for count, (name, folder) in enumerate(sorted(folders.items()), start=1):
        try:
            said = evaluator.evaluate(folder.name)
            text = read_text_file(folder / INIT_FILE) or ""
        except (NotEvaluated, BadPackageFile) as error:
            failures.append(f"{name}: {error}")
        else:
            one = DocumentedPackage.of(folder.name, name, said, text)
            packages.append(one)
            found = check_package(one, str(said.meta.get("name", ""))) if with_lint else []
            if found:
                made.violations.append(format_violations(name, found))
                made.errors += sum(one.is_error for one in found)
                warned += sum(not one.is_error for one in found)
            made.done.append(f"  [ok]   {name}")
        if progress is not None:
            progress(count, len(folders))
    if failures:
        raise BadPackage(
            f"gendoc: {len(failures)} of {len(folders)} packages cannot be loaded:\n  "
            + "\n  ".join(failures),
            "Nothing was written. Packages are loaded in the sandbox, without models and files.",
        )
    lint = f", lint: {made.errors} error(s) / {warned} warning(s)" if with_lint else ""
    made.done.append(f"\n{len(packages)} generated, 0 failed{lint}")
    if strict and made.errors:
        raise BadPackage(
            f"gendoc: lint found {made.errors} error(s):\n" + "\n".join(made.violations),
            "Nothing was written. Correct the packages, or leave out lint_strict.",
        )
    return packages


def _make_files(
    made: _Documents,
    packages: list[DocumentedPackage],
    wanted: frozenset[str],
    said: Projections,
    title: str,
) -> Iterator[tuple[Path, str]]:
    for one in packages:
        yield made.out_dir / "narrative" / f"{one.name}.md", format_page(one)
        if "hub" in wanted:
            yield made.out_dir / "hub" / f"{one.name}.json", dump_entry(one)
    yield made.out_dir / "llms.txt", format_list(title, packages)
    yield made.out_dir / "llms-full.txt", format_all_pages(title, packages)
    if "context7" in wanted:
        if said.context7 is None:
            raise BadPackage("gendoc: the file of config_path has no table [context7]")
        yield made.source_dir / "context7.json", dump_context7(said.context7)
    if "devin" in wanted:
        if said.devin is None:
            raise BadPackage("gendoc: the file of config_path has no table [devin]")
        yield made.source_dir / ".devin" / "wiki.json", dump_wiki(said.devin)


def _check_shapes_version(source: Path) -> None:
    """A copy of alc_shapes among the packages must have the version that everhold knows."""
    file = source / "alc_shapes" / INIT_FILE
    text = read_text_file(file) if file.is_file() else None
    if text is None:
        return
    found = _SHAPES_VERSION_LINE.search(text)
    if found is None:
        raise BadPackage(
            f"gendoc: {file} does not say M.VERSION as text", f'It should say "{SHAPES_VERSION}".'
        )
    if found[1] != SHAPES_VERSION:
        raise BadPackage(
            f"gendoc: alc_shapes version mismatch: everhold has {SHAPES_VERSION}, and {file}"
            f" has {found[1]}; the CHANGELOG of alc_shapes says what differs",
            f"Use version {SHAPES_VERSION} of alc_shapes, or remove the folder: everhold has"
            " its own.",
        )


def _check_compat(folders: dict[str, Path]) -> Iterator[str]:
    """Warnings for packages that declare no range; raises `BadPackage` for a range that does not
    fit.
    """
    for name, folder in sorted(folders.items()):
        wanted = read_meta_fields(folder / INIT_FILE).get("alc_shapes_compat")
        if wanted is None:
            yield (f"package {name}: alc_shapes_compat not declared; it gets {SHAPES_VERSION}")
            continue
        try:
            fits = is_in_range(SHAPES_VERSION, wanted)
        except ValueError as error:
            raise BadPackage(
                f"gendoc: package '{name}': its alc_shapes_compat cannot be read: {error}",
                f'Say in M.meta: alc_shapes_compat = "^{SHAPES_VERSION}"',
            ) from None
        if not fits:
            raise BadPackage(
                f"gendoc: package '{name}' wants alc_shapes {wanted} by its alc_shapes_compat, and"
                f" everhold has {SHAPES_VERSION}",
                "Declare a wider range in M.meta, if the package works with this version.",
            )


def _find_stale(made: _Documents) -> Iterator[str]:
    """Warnings for generated pages of packages that are gone."""
    for file in sorted((made.out_dir / "narrative").glob("*.md")) if made.files else ():
        text = "" if file in made.files else file.read_text("utf-8", "replace")
        if f"\ngenerated: {GENERATED}\n" in text:
            yield f"{file} is the page of a package that is gone; delete it"


# ---- writing


def _write(files: dict[Path, str]) -> list[str]:
    """Write the files whose text is new; returns their paths. Checks all of them first."""
    for file in files:
        blocked = next((at for at in file.parents if at.exists() and not at.is_dir()), None)
        if file.is_dir() or blocked is not None:
            raise BadPackage(
                f"{file} cannot be written: {blocked or file} is"
                f" {'a folder' if blocked is None else 'a file'}",
                "Nothing was written. Move it away, or choose another folder.",
            )
    fresh = {file: text for file, text in files.items() if _read_present(file) != text}
    for file in fresh:
        file.parent.mkdir(parents=True, exist_ok=True)
    write_together(fresh, mode=0o644)
    return sorted(str(file) for file in fresh)


def _read_present(file: Path) -> str | None:
    try:
        return file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _report(
    made: _Documents, source_dir: str | Path, out_dir: str | Path | None, written: list[str]
) -> dict[str, Any]:
    return {
        "source_dir": str(source_dir),
        "out_dir": str(made.out_dir if out_dir is None else out_dir),
        "stdout": "\n".join([*made.done, ""]),
        "stderr": "\n".join([*made.violations, ""]) if made.violations else "",
        "warnings": made.warnings,
        "written": written,
    }
