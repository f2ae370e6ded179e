"""Which spans of one thread lie inside which: outermost operators, and the annotations around a moment.

Spans are half-open ``[start_ns, end_ns)``. Only a span's start decides what encloses it: in traces of whole
microseconds a child may seem to outlive its parent by one, and a span of no length encloses nothing.
"""

from collections.abc import Sequence


def outermost(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Indices of the spans that start inside no other one, in order of start.

    Of two spans that start together the longer encloses the shorter; of two equal ones, the earlier in the file.

    >>> outermost([(0, 10), (2, 5), (10, 11), (10, 10)])
    [0, 2]
    """
    found, reach = [], None
    for i in sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1], i)):
        start, end = spans[i]
        if reach is None or start >= reach:
            found.append(i)
            reach = end
    return found


def names_around(spans: Sequence[tuple[int, int, str]], moments: Sequence[int]) -> list[tuple[str, ...]]:
    """For each moment the names of the spans around it, outermost first.

    >>> names_around([(0, 10, "step"), (2, 5, "q_proj")], [3, 7, 10])
    [('step', 'q_proj'), ('step',), ()]
    """
    waiting = sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1], i), reverse=True)
    names: list[tuple[str, ...]] = [()] * len(moments)
    open_spans: list[tuple[int, int, str]] = []
    for i in sorted(range(len(moments)), key=moments.__getitem__):
        now = moments[i]
        while waiting and spans[waiting[-1]][0] <= now:
            span = spans[waiting.pop()]
            open_spans = [other for other in open_spans if other[1] > span[0]]
            open_spans.append(span)
        open_spans = [span for span in open_spans if span[1] > now]
        names[i] = tuple(name for _, _, name in open_spans)
    return names
