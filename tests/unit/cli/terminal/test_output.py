"""Tables for people."""

import pytest

from evenkeel.cli.terminal.output import OutputFormat, show_rows


@pytest.mark.parametrize(
    ("value", "shown"),
    [(12345.6, "12346"), (-1999.6, "-2000"), (999.6, "1000"), (81.54, "81.5"), (0.93749, "0.937"), (1e-5, "1e-05")],
)
def test_a_number_is_shown_as_a_person_writes_it(value: float, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    show_rows([{"seconds": value}], {"seconds": "LOST SECONDS"}, OutputFormat.TABLE)
    assert capsys.readouterr().out.split()[-1] == shown
