"""A file that was loaded is found again at once, because servers look for it with each call."""

from everhold.packages import load


def test_the_names_of_a_loaded_file_are_not_searched_again(tmp_path, monkeypatch):
    """That takes several looks at each folder of `sys.path`."""
    file = tmp_path / "loaded_again.py"
    file.write_text("import everhold\n")
    searched = []
    names = load.list_module_names
    monkeypatch.setattr(
        load, "list_module_names", lambda path: searched.append(path) or names(path)
    )
    first = load.load_file(file, str(file))
    assert load.load_file(file, str(file)) is first
    assert searched == [file]
