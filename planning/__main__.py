"""The planner as a process of its own: ``python -m evenkeel.planning``.

Reads questions from its input, a line each: a number, a space, and the JSON document that ``evenkeel plan`` reads. It
answers with a line: that number and a document, which is the answer, or says why there is no plan (``no_plan``), or
holds a traceback (``failed``). Its first line has the number 0 and says that it is ready. It ends with its input.
"""

import json
import signal
import sys
import traceback
from typing import Any, TextIO

from evenkeel.planning.documents.answer import answer_to_document
from evenkeel.planning.documents.question import question_as_written
from evenkeel.planning.search.solver import solve
from evenkeel.planning.solution import NoPlanError
from evenkeel.planning.warm_up import warm_up


def main() -> None:
    """Answer until the input ends."""
    # Whoever asks ends this: an interrupt from a terminal is meant for them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a library prints must not end up among the answers.
    answers, sys.stdout = sys.stdout, sys.stderr
    _say(answers, "0", {"ready_seconds": round(warm_up(), 3)})
    for line in sys.stdin:
        number, _, question = line.partition(" ")
        _say(answers, number, _answer_to(question))


def _answer_to(question: str) -> dict[str, Any]:
    try:
        return answer_to_document(solve(question_as_written(json.loads(question))))
    except NoPlanError as error:
        return {"no_plan": str(error)}
    except Exception:  # the boundary: what one question trips over must not stop the others
        return {"failed": traceback.format_exc()}


def _say(answers: TextIO, number: str, document: dict[str, Any]) -> None:
    answers.write(f"{number} {json.dumps(document)}\n")
    answers.flush()


if __name__ == "__main__":
    main()
