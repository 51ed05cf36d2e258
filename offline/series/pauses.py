"""Iterations that now and then take much longer than the others: how often, so that they are not taken for noise.

Noise wide enough to hold them would hide a slowdown; noise without them would make each of them evidence. So they are
told apart from the body of the noise, and an iteration is evidence only as far as it is likelier under a slowdown than
as one more of them.
"""

from dataclasses import dataclass

import numpy as np

from evenkeel.numeric.arrays import Floats

_FAR = 8.0
_LEAST_FAR = 0.012
_MOST_OFTEN = 0.15
_DOUBT = 1.5
# Some three iterations in a row are a pause; a slowdown that goes on for longer must outweigh them at last.
_MOST_LIKELY_TO_GO_ON = 0.2
_PRIOR_PAIRS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Pauses among healthy iterations.

    Attributes:
        share: Part of the iterations that pause, or of those right after a pause if that is more; with doubt, and not
            above ``_MOST_LIKELY_TO_GO_ON``.
    """

    share: float = 0.01


def set_apart(residuals: Floats) -> tuple[Floats, Pauses]:
    """Residuals without the pauses among them (NaN in their place), and how often these come.

    What is far off more than about one time in seven is noise with two modes: it stays.

    Args:
        residuals: In order, log units of time; NaN where there is none.
    """
    known = np.isfinite(residuals)
    count = int(known.sum())
    if count == 0:
        return residuals, Pauses()
    absolute = np.abs(np.where(known, residuals, 0.0))
    far = known & (absolute > max(_FAR * np.median(absolute[known]), _LEAST_FAR))
    share = float(far.sum() + 0.5) / (count + 1)
    # A pause may be part of a longer one.
    before, after = far[:-1] & known[1:], far[1:]
    again = float((before & after).sum() + _PRIOR_PAIRS * share) / (float(before.sum()) + _PRIOR_PAIRS)
    if share > _MOST_OFTEN:
        return residuals, Pauses(share=_DOUBT * 0.5 / (count + 1))
    return np.where(far, np.nan, residuals), Pauses(share=min(_DOUBT * max(share, again), _MOST_LIKELY_TO_GO_ON))
