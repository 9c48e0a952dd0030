"""Which tests `bin/test --fast` runs."""

from tests.changed import ALWAYS, paths_of


def test_the_tests_of_a_module_of_its_folder_and_of_its_importers_in_this_order() -> None:
    assert paths_of([]) == [*ALWAYS]
    found = paths_of(["keras_transformer/layers/masks.py"])
    tests = ("layers/masks", "layers/attention", "extensions/litert/blocks")
    indices = [found.index(f"tests/{name}_test.py") for name in tests]
    assert indices == sorted(indices) and indices[0] == len(ALWAYS)
    assert "tests/cli/mistakes_test.py" in paths_of(["tests/driver.py"])
    assert "tests/docs_test.py" in paths_of(["docs/python.md"])
    assert "tests/presets_test.py" in paths_of(["tests/presets_test.py"])
    pages = "keras_transformer/extensions/pages/templates/report.html"
    assert "tests/extensions/pages/report_test.py" in paths_of([pages])
