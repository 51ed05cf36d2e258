from itertools import count

import pytest

from evenkeel.cli.terminal.newest import newest


def test_a_list_that_goes_on_is_cut_says_so_and_is_not_read_further(capsys: pytest.CaptureFixture[str]) -> None:
    read = count()
    assert newest(({"row": row} for row in read), 2) == [{"row": 0}, {"row": 1}]
    assert next(read) == 3
    assert "-n 20 shows more" in capsys.readouterr().err


def test_a_list_that_ends_where_it_would_be_cut_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert newest(iter([{"row": 0}, {"row": 1}]), 2) == [{"row": 0}, {"row": 1}]
    assert capsys.readouterr().err == ""
