"""What a report is made of: sections with tables, drawings and what is said of them. As text, as HTML, as Markdown.

`make test-report` looks at the page with a real browser: on a phone, on a screen, on paper.
"""

import dataclasses
import html
import re

from .figures import table

# That of the reports of `beeline bench`: readable on a phone (tables scroll in their boxes) and on paper (tables and figures stay whole).
STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #555; --line: #ddd; --back: #fff;
  font: 16px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--back) }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #aaa; --line: #444; --back: #17181a } }
body { max-width: 76rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 0.2rem }
.source, .note, footer { color: var(--soft); font-size: 0.9rem; margin: 0.2rem 0 }
.box { overflow-x: auto } .long { max-height: 36rem; overflow-y: auto } .long th { position: sticky; top: 0; background: var(--back) }
svg { max-width: 100%; height: auto; display: block; margin: 0.6rem 0 }
@media screen and (max-width: 44rem) { svg { max-width: none; width: 44rem } }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; margin: 0.6rem 0 }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; overflow-wrap: normal }
th { white-space: normal; vertical-align: bottom } th:first-child, td:first-child { text-align: left }
nav a { margin-right: 1rem; display: inline-block } a { color: inherit }
@media print { :root { --ink: #1a1a1a; --soft: #555; --line: #ddd; --back: #fff; color-scheme: light }
  body { max-width: none; padding: 0 } nav { display: none } section, table, svg { break-inside: avoid }
  .box, .long { overflow: visible; max-height: none } table { font-size: 0.6rem } th, td { padding: 0.1rem 0.2rem; white-space: normal } }
@page { size: A4 landscape; margin: 12mm }
"""
# A table of more rows than these scrolls under its head, or it would push all that follows off the screen.
LONG_ROWS = 30


@dataclasses.dataclass
class Section:
    title: str
    notes: list = dataclasses.field(default_factory=list)
    # Each a head and rows.
    tables: list = dataclasses.field(default_factory=list)
    drawings: list = dataclasses.field(default_factory=list)

    @property
    def id(self):
        return slug(self.title)


def slug(words):
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def as_text(section):
    return "\n".join([section.title.upper(), *section.notes, *(table(head, rows) for head, rows in section.tables)])


def html_page(title, lines, sections):
    esc = html.escape
    parts = ['<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, '
             f'initial-scale=1">\n<title>{esc(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{esc(title)}</h1>']
    parts += [f'<p class="source">{esc(line)}</p>' for line in lines]
    parts.append("<nav>" + "".join(f'<a href="#{section.id}">{esc(section.title)}</a>' for section in sections) + "</nav>")
    for section in sections:
        parts.append(f'<section id="{section.id}">\n<h2>{esc(section.title)}</h2>')
        parts += [f'<div class="box">\n{drawing}\n</div>' for drawing in section.drawings]
        parts += [_html_table(head, rows) for head, rows in section.tables]
        parts += [f'<p class="note">{esc(note)}</p>' for note in section.notes]
        parts.append("</section>")
    return "\n".join([*parts, "</body>\n</html>\n"])


def _html_table(head, rows):
    line = lambda tag, row: "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in row) + "</tr>"
    box = "box long" if len(rows) > LONG_ROWS else "box"
    return (f'<div class="{box}">\n<table>\n<thead>{line("th", head)}</thead>\n<tbody>\n' + "\n".join(line("td", row) for row in rows)
            + "\n</tbody>\n</table>\n</div>")


def files_of(section):
    """The drawings' files, by what the drawings are called."""
    called = [re.search(r'aria-label="([^"]*)"', drawing)[1] for drawing in section.drawings]
    return [f"{section.id}-{slug(html.unescape(name))}.svg" for name in called]


def markdown(title, lines, sections):
    esc = lambda text: str(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    row = lambda cells: "| " + " | ".join(esc(cell) for cell in cells) + " |"
    parts = [f"# {title}", *map(esc, lines)]
    for section in sections:
        parts.append(f"## {section.title}")
        parts += [f"![{section.title}](figures/{file})" for file in files_of(section)]
        parts += ["\n".join([row(head), "|" + "---|" + "---:|" * (len(head) - 1), *map(row, rows)]) for head, rows in section.tables]
        if section.notes:
            parts.append("\n".join(f"- {esc(note)}" for note in section.notes))
    return "\n\n".join(parts) + "\n"
