import pytest

from benchmarks.planning.page import MOST_WORDS, PAGE, checked, num_words, shown_table

PRINTED = "## First one, by hand\n\n| a |\n| --- |\n| 1 |\n\n## Second\n\nwords\n\n| b |\n| --- |\n| 2 |\n\nBound 3.\n"


def check(difference, cause="", system="S"):
    return {"system": system, "table": "T", "difference": difference, "cause": cause}


@pytest.mark.parametrize(("title", "cell"), [("First", "| 1 |"), ("Second", "| 2 |"), ("", "| 1 |")])
def test_a_table_is_found_by_the_beginning_of_its_title(tmp_path, title, cell):
    (tmp_path / "part.md").write_text(PRINTED)
    assert shown_table(tmp_path, "part", title).splitlines()[-1] == cell


def test_what_has_not_run_says_how_to_run_it(tmp_path):
    with pytest.raises(SystemExit, match=r"run python -m benchmarks\.planning --parts part"):
        shown_table(tmp_path, "part", "")
    (tmp_path / "part.md").write_text(PRINTED)
    with pytest.raises(SystemExit, match="no table 'Third'"):
        shown_table(tmp_path, "part", "Third")


def test_checks_of_a_system_are_one_line_with_every_cause_once():
    bounds = [f"above the bound, {bound}" for bound in (95.3, 89.1)]
    lines = checked([check(-8.0, bounds[0]), check(6.0, bounds[1]), check(4.0), check(0.0, system="R")]).splitlines()
    assert lines[2] == "| S | T | 1 of 3 | -8.0 to 6.0 | above the bound |"
    assert lines[3] == "| R | T | 1 of 1 | 0.0 | - |"


def test_words_in_tables_count_and_their_borders_do_not():
    assert num_words("| a | 1.0 to 2.0 |\n| --- | --- |\nTwo words.") == 6


def test_the_page_is_as_short_as_it_must_be():
    assert num_words(PAGE.read_text()) <= MOST_WORDS
