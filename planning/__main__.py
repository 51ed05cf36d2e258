"""The planner as a process of its own: ``python -m evenkeel.planning``.

Reads questions from its input, a line each: a number, the digest of the code that asks, and a pickled
:class:`Situation` in base64. It answers with a number and what is pickled likewise: the :class:`Solution`, or the
:class:`NoPlanError`, or what went wrong as text; where the code is another one, as after an upgrade, that. Its first
line has the number 0 and the seconds after which it is ready. It ends with its input.
"""

import pickle
import sys
import traceback
from base64 import b64decode, b64encode
from typing import BinaryIO

from evenkeel.planning.documents.code_digest import code_digest
from evenkeel.planning.search.solver import solve
from evenkeel.planning.solution import NoPlanError, Solution
from evenkeel.planning.warm_up import warm_up

_OTHER_CODE = "the planner's code on disk is not the scheduler's any more: restart the scheduler"


def main() -> None:
    """Answer until the input ends."""
    # What a library prints must not end up among the answers.
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    own = code_digest().encode()
    _say(answers, b"0", round(warm_up(), 3))
    for line in sys.stdin.buffer:
        number, code, question = line.split()
        _say(answers, number, _answer_to(question) if code == own else _OTHER_CODE)


def _answer_to(question: bytes) -> Solution | NoPlanError | str:
    try:
        return solve(pickle.loads(b64decode(question)))  # noqa: S301 - whoever started this process wrote it
    except NoPlanError as error:
        return error
    except Exception:  # the boundary: what one question trips over must not stop the others
        return traceback.format_exc()


def _say(answers: BinaryIO, number: bytes, what: Solution | NoPlanError | str | float) -> None:
    answers.write(b"%b %b\n" % (number, b64encode(pickle.dumps(what))))
    answers.flush()


if __name__ == "__main__":
    main()
