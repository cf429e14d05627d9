"""Reward of the quickstart: how close is the number to the answer?"""

import re


def number_closeness(completions, answer, scale=9.0, **kwargs):
    """1 for the right number and nothing else, less by 1 / scale for each unit it is off.

    The number is the digits at the start of the completion; what follows them costs half.
    """
    scores = []
    for completion, truth in zip(completions, answer, strict=True):
        digits = re.match(r"\d{1,3}", completion)
        if digits is None:
            scores.append(0.0)
            continue
        closeness = max(0.0, 1.0 - abs(int(digits.group()) - int(truth)) / scale)
        scores.append(closeness if digits.group() == completion else closeness / 2)
    return scores
