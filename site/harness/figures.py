"""Medians with what is known of them, and drawings of them."""

import html
import statistics


def median(values):
    """The median, and the interval between the least and the greatest value, which holds the true median with a probability that
    follows from how many there are: 1 - 2 / 2^n."""
    values = sorted(values)
    if not values:
        return None
    return {"median": statistics.median(values), "least": values[0], "greatest": values[-1], "n": len(values),
            "confidence": max(0.0, 1 - 2.0 ** (1 - len(values)))}


def ratio(values, base):
    """Round for round: what came of the one by what came of the other right before or after it."""
    return median([value / other for value, other in zip(values, base) if other])


def text(figure, digits=1):
    if figure is None:
        return "-"
    if figure["n"] == 1:
        return f"{figure['median']:.{digits}f}"
    return f"{figure['median']:.{digits}f} ({figure['least']:.{digits}f} to {figure['greatest']:.{digits}f})"


def table(head, rows):
    """Plain text: the first column to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for row in cells:
        lines.append("  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                               for column, (cell, width) in enumerate(zip(row, widths))).rstrip())
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines)


def html_table(head, rows):
    line = lambda tag, row: "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row) + "</tr>"
    return "<table>" + line("th", head) + "".join(line("td", row) for row in rows) + "</table>"


COLOURS = ("#666666", "#1f6fb4", "#d9822b", "#3a9b5c", "#9b3a8e")
WIDTH, HEIGHT, MARGIN = 760, 280, 46


def _frame(title, unit, top, body, below):
    lines = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 70}" role="img" aria-label="{html.escape(title)}">',
             f'<text x="{MARGIN}" y="16" class="title">{html.escape(title)}</text>']
    for step in range(5):
        value = top * step / 4
        y = HEIGHT - (HEIGHT - MARGIN) * step / 4
        lines.append(f'<line x1="{MARGIN}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
                     f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    lines.append(f'<text x="{MARGIN}" y="{MARGIN - 12}">{html.escape(unit)}</text>')
    return "".join([*lines, *body, *below, "</svg>"])


def _legend(names):
    return [f'<rect x="{MARGIN + 150 * index}" y="{HEIGHT + 50}" width="12" height="12" fill="{COLOURS[index % 5]}"/>'
            f'<text x="{MARGIN + 150 * index + 18}" y="{HEIGHT + 60}">{html.escape(name)}</text>' for index, name in enumerate(names)]


def over_time(title, unit, series, marks=()):
    """Lines, a value each second. `series`: name -> values. `marks`: seconds at which something begins or ends."""
    length = max(len(values) for values in series.values())
    top = max(max(values) for values in series.values()) * 1.1 or 1
    across = lambda second: MARGIN + (WIDTH - MARGIN - 10) * second / max(length - 1, 1)
    body = [f'<line x1="{across(mark):.1f}" x2="{across(mark):.1f}" y1="{MARGIN}" y2="{HEIGHT}" class="mark"/>' for mark in marks]
    for index, values in enumerate(series.values()):
        points = " ".join(f"{across(second):.1f},{HEIGHT - (HEIGHT - MARGIN) * value / top:.1f}"
                          for second, value in enumerate(values))
        body.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[index % 5]}" stroke-width="1.6"/>')
    below = [f'<text x="{across(second):.1f}" y="{HEIGHT + 16}" text-anchor="middle">{second}</text>'
             for second in range(0, length, max(1, length // 12))]
    return _frame(title, unit, top, body, [*below, *_legend(series)])


def bars(title, unit, groups, series):
    """A group of bars for each of `groups`. `series`: name -> a value for each group."""
    top = max((max(values) for values in series.values()), default=0) * 1.1 or 1
    wide = (WIDTH - MARGIN - 10) / len(groups)
    bar = wide * 0.8 / len(series)
    body = []
    for index, values in enumerate(series.values()):
        for place, value in enumerate(values):
            height = (HEIGHT - MARGIN) * value / top
            body.append(f'<rect x="{MARGIN + wide * (place + 0.1) + bar * index:.1f}" y="{HEIGHT - height:.1f}" '
                        f'width="{bar:.1f}" height="{height:.1f}" fill="{COLOURS[index % 5]}"><title>{value:.3g}</title></rect>')
    below = [f'<text x="{MARGIN + wide * (place + 0.5):.1f}" y="{HEIGHT + 12 + 13 * (place % 2)}" text-anchor="middle" '
             f'class="small">{html.escape(group)}</text>' for place, group in enumerate(groups)]
    return _frame(title, unit, top, body, [*below, *_legend(series)])
