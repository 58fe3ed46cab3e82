"""Medians with what is known of them, as values and as text."""

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
