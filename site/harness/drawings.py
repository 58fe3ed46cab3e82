"""Drawings: SVG that is whole by itself, and takes the page's colours where it stands in one.

Colours are those of Okabe and Ito, told apart by readers who see few colours, too: vermilion and its like for TCP, blues for Beeline, as
in the reports of `beeline bench`. What a line is called stands below as well, in the order of the lines.
"""

import html

# By column; anything else (errors, a single line) takes its place's of OTHERS.
COLOURS = {"TCP": "#d55e00", "TCP again": "#e69f00", "inner tiers": "#56b4e9", "all": "#0072b2"}
OTHERS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
WIDTH, HEIGHT, MARGIN, RIGHT = 760, 280, 52, 14
# The page's style sets these by light and dark.
STYLE = ("<style>svg text { font: 11px system-ui, sans-serif; fill: var(--ink, #333) } svg .title { font-weight: bold; font-size: 13px } "
         "svg .small { font-size: 8.5px } svg .grid { stroke: var(--line, #ddd) } svg .axis { stroke: var(--soft, #555) } "
         "svg .mark { stroke: var(--soft, #555); stroke-dasharray: 4 3 }</style>")

# For a file: there is no page that says so.
DARK = "<style>@media (prefers-color-scheme: dark) { svg { --ink: #e6e6e6; --soft: #aaa; --line: #444 } }</style>"


def alone(drawing):
    """A drawing as a file."""
    return drawing.replace(STYLE, STYLE + DARK)


def colour(name, index):
    return COLOURS.get(name, OTHERS[index % len(OTHERS)])


def _frame(title, unit, least, top, body, below):
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 70}" role="img" aria-label="{html.escape(title)}">',
             STYLE, f'<text x="{MARGIN}" y="16" class="title">{html.escape(title)}</text>']
    for step in range(5):
        value = least + (top - least) * step / 4
        y = HEIGHT - (HEIGHT - MARGIN) * step / 4
        lines.append(f'<line x1="{MARGIN}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
                     f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    lines.append(f'<text x="{MARGIN}" y="{MARGIN - 12}">{html.escape(unit)}</text>')
    return "".join([*lines, *body, *below, "</svg>"])


def _legend(names):
    return [f'<rect x="{MARGIN + 150 * index}" y="{HEIGHT + 50}" width="12" height="12" fill="{colour(name, index)}"/>'
            f'<text x="{MARGIN + 150 * index + 18}" y="{HEIGHT + 60}">{html.escape(name)}</text>' for index, name in enumerate(names)]


def over_time(title, unit, series, marks=()):
    """Lines, a value each second. `series`: name -> values. `marks`: seconds at which something begins or ends."""
    length = max(len(values) for values in series.values())
    top = max(max(values) for values in series.values()) * 1.1 or 1
    across = lambda second: MARGIN + (WIDTH - MARGIN - RIGHT) * second / max(length - 1, 1)
    body = [f'<line x1="{across(mark):.1f}" x2="{across(mark):.1f}" y1="{MARGIN}" y2="{HEIGHT}" class="mark"/>' for mark in marks]
    for index, (name, values) in enumerate(series.items()):
        points = " ".join(f"{across(second):.1f},{HEIGHT - (HEIGHT - MARGIN) * value / top:.1f}"
                          for second, value in enumerate(values))
        body.append(f'<polyline points="{points}" fill="none" stroke="{colour(name, index)}" stroke-width="1.6"/>')
    step = max(1, length // 12)
    below = [f'<text x="{across(second):.1f}" y="{HEIGHT + 16}" text-anchor="middle">{second}{" s" if second + step >= length else ""}</text>'
             for second in range(0, length, step)]
    return _frame(title, unit, 0, top, body, [*below, *_legend(series)])


def bars(title, unit, groups, series):
    """A group of bars for each of `groups`. `series`: name -> a value for each group."""
    top = max((max(values) for values in series.values()), default=0) * 1.1 or 1
    wide = (WIDTH - MARGIN - RIGHT) / len(groups)
    bar = wide * 0.8 / len(series)
    body = []
    for index, (name, values) in enumerate(series.items()):
        for place, value in enumerate(values):
            height = (HEIGHT - MARGIN) * value / top
            body.append(f'<rect x="{MARGIN + wide * (place + 0.1) + bar * index:.1f}" y="{HEIGHT - height:.1f}" '
                        f'width="{bar:.1f}" height="{height:.1f}" fill="{colour(name, index)}"><title>{value:.3g}</title></rect>')
    below = [f'<text x="{MARGIN + wide * (place + 0.5):.1f}" y="{HEIGHT + 12 + 13 * (place % 2)}" text-anchor="middle" '
             f'class="small">{html.escape(group)}</text>' for place, group in enumerate(groups)]
    return _frame(title, unit, 0, top, body, [*below, *_legend(series)])


def over_loads(title, unit, series, marks=(), level=None):
    """Lines over loads, with a bar from the least to the greatest of the rounds. `series`: name -> [(load, figure)], a figure as `median`
    makes it. `marks`: loads that are told. `level`: a value that a line is drawn at; the scale then holds what is measured and not 0."""
    figures = [figure for points in series.values() for _, figure in points]
    least, top = 0, max((figure["greatest"] for figure in figures), default=1) * 1.1 or 1
    if level is not None:
        least = min([level, *(figure["least"] for figure in figures)])
        top = max([level, *(figure["greatest"] for figure in figures)])
        least, top = least - 0.05 * (top - least or 1), top + 0.05 * (top - least or 1)
    loads = sorted({load for points in series.values() for load, _ in points})
    across = lambda load: MARGIN + 10 + (WIDTH - MARGIN - RIGHT - 20) * (load - loads[0]) / max(loads[-1] - loads[0], 1)
    up = lambda value: HEIGHT - (HEIGHT - MARGIN) * (value - least) / (top - least)
    body = [f'<line x1="{across(mark):.1f}" x2="{across(mark):.1f}" y1="{MARGIN}" y2="{HEIGHT}" class="mark"/>' for mark in marks]
    if level is not None:
        body.append(f'<line x1="{MARGIN}" x2="{WIDTH - RIGHT}" y1="{up(level):.1f}" y2="{up(level):.1f}" class="axis"/>')
    for index, (name, points) in enumerate(series.items()):
        # Side by side, or the bars of columns that are alike hide each other.
        aside = 3 * (index - (len(series) - 1) / 2)
        line = " ".join(f"{across(load) + aside:.1f},{up(figure['median']):.1f}" for load, figure in points)
        body.append(f'<polyline points="{line}" fill="none" stroke="{colour(name, index)}" stroke-width="1.6"/>')
        for load, figure in points:
            x = across(load) + aside
            body.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{up(figure["least"]):.1f}" y2="{up(figure["greatest"]):.1f}" '
                        f'stroke="{colour(name, index)}" stroke-width="1.6"/><circle cx="{x:.1f}" cy="{up(figure["median"]):.1f}" r="3" '
                        f'fill="{colour(name, index)}"><title>{figure["median"]:.4g}</title></circle>')
    below = [f'<text x="{across(load):.1f}" y="{HEIGHT + 16}" text-anchor="middle">{load}</text>' for load in loads]
    below.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT + 34}" text-anchor="end">browsers</text>')
    return _frame(title, unit, least, top, body, [*below, *_legend(series)])
