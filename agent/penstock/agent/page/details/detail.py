"""A detail: sentences and sections, which the page shows without knowing what they are about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.agent.page.wire import MAX_MESSAGE_BYTES, encode, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.agent.views.tables import Table

_MAX_TEXT = 40_000
_MAX_SENTENCES = 40


@dataclass(frozen=True, slots=True)
class Link:
    """What a click on a row opens; empty texts for what it does not need."""

    kind: str
    engine: str = ""
    peer: str = ""
    id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class DetailRow:
    """A row of a table."""

    cells: tuple[str, ...]
    command: str = ""
    link: Link | None = None


@dataclass(frozen=True, slots=True)
class TableSection:
    """A table; *sentence* says what is left out, or why it is empty; one that is *folded* opens by a click."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[DetailRow, ...]
    sentence: str = ""
    kind: str = "table"
    folded: bool = False


@dataclass(frozen=True, slots=True)
class GateBar:
    """How long a request was at a gate before its first token, as a part of its bar: milliseconds since 1970.

    Gates stand one after the other; when a request was at which is not known.
    """

    gate: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """A bar: milliseconds since 1970; *state*: ``ok``, ``error``, ``wait`` or ``open``.

    Attributes:
        gates: of a request, what its time to first token was made of.

    """

    side: str
    name: str
    start: float
    end: float
    text: str
    state: str
    gates: tuple[GateBar, ...] = ()


@dataclass(frozen=True, slots=True)
class WaterfallSection:
    """Bars over one span of time."""

    title: str
    start: float
    end: float
    rows: tuple[WaterfallRow, ...]
    sentence: str = ""
    kind: str = "waterfall"


@dataclass(frozen=True, slots=True)
class TextSection:
    """Lines as they are."""

    title: str
    text: str
    kind: str = "text"
    folded: bool = False


@dataclass(frozen=True, slots=True)
class PlotSection:
    """One of the signals of the last 15 minutes, which the page draws as it comes.

    Attributes:
        plot: ``requests``, ``ttft``, ``queue``, ``loads``, ``failed`` or ``held``.
        engine: whose signals; empty for all together.
        sentence: what to look for, or whose signals they are.

    """

    title: str
    plot: str
    engine: str
    sentence: str = ""
    kind: str = "plot"


@dataclass(frozen=True, slots=True)
class MinutesSection:
    """Failures and deferrals per minute, which the page counts as they come; an empty *engine* or *peer* is for all."""

    title: str
    engine: str
    peer: str
    sentence: str = ""
    kind: str = "minutes"


Section: TypeAlias = TableSection | WaterfallSection | TextSection | PlotSection | MinutesSection


@dataclass(frozen=True, slots=True)
class EditField:
    """A field of a policy's form: as ``FormField`` of the manifest, and its *value* as text; empty where it is not set."""

    path: str
    section: str
    about: str
    kind: str
    choices: tuple[str, ...]
    least: float | None
    most: float | None
    pattern: str
    bounds: str
    unit: str
    meaning: str
    default: str
    value: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A manifest that is being edited, in both forms."""

    manifest: str
    fields: tuple[EditField, ...]


@dataclass(frozen=True, slots=True)
class Detail:
    """The answer to a question.

    Attributes:
        manifest: of a policy, for the editor; empty for other details.
        generation: of a policy; 0 for other details.
        trace_url: where the operator's own trace backend shows a request; empty for none.
        fields: of a policy, for the form of the editor; empty for other details.

    """

    title: str
    sentences: tuple[str, ...]
    command: str
    sections: tuple[Section, ...]
    manifest: str = ""
    generation: int = 0
    trace_url: str = ""
    fields: tuple[EditField, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """What a write did, or would do."""

    sentence: str
    sentences: tuple[str, ...]
    sections: tuple[Section, ...]
    command: str


def sentences(lines: Iterable[str]) -> tuple[str, ...]:
    """Return lines of agentctl for the page."""
    return tuple(plain(line) for line in lines)[:_MAX_SENTENCES]


def text_section(title: str, lines: Iterable[str], *, folded: bool = False) -> TextSection:
    """Return the section of lines of agentctl."""
    return TextSection(title, plain("\n".join(lines), _MAX_TEXT), folded=folded)


def table_section(
    title: str,
    table: Table,
    *,
    sentence: str = "",
    links: Sequence[Link] = (),
    commands: Sequence[str] = (),
    folded: bool = False,
) -> TableSection:
    """Return the section of a table of agentctl; *links* and *commands* are of its rows, or empty."""
    rows = tuple(
        DetailRow(
            tuple(map(plain, cells)),
            commands[number] if commands else "",
            links[number] if links else None,
        )
        for number, cells in enumerate(table.rows)
    )
    return TableSection(
        title, table.headers, rows, sentence if rows or sentence else "nothing", folded=folded
    )


def fitted(value: Detail | WriteAnswer, most: int = MAX_MESSAGE_BYTES) -> bytes:
    """Return *value* as JSON, with as much of its sections as *most* bytes hold."""
    while len(encoded := encode(value)) > most:
        largest = max(
            range(len(value.sections)), key=lambda number: len(encode(value.sections[number])), default=None
        )
        if largest is None or len(encode(value.sections[largest])) < most // 32:
            changes: Any = {"sentences": value.sentences[: len(value.sentences) // 2]}
            if isinstance(value, Detail) and len(value.manifest) > most // 4:
                changes |= {"manifest": "", "fields": ()}
            value = replace(value, **changes)
            continue
        sections = list(value.sections)
        sections[largest] = _smaller(sections[largest])
        value = replace(value, sections=tuple(sections))
    return encoded


def _smaller(section: Section) -> Section:
    if isinstance(section, PlotSection | MinutesSection):
        return replace(section, sentence="")
    if isinstance(section, TextSection):
        return replace(section, text=plain(section.text, len(section.text) * 2 // 3))
    kept = len(section.rows) * 2 // 3
    sentence = f"the first {kept} are shown; the command lists all"
    if isinstance(section, TableSection):
        return replace(section, rows=section.rows[:kept], sentence=sentence)
    return replace(section, rows=section.rows[:kept], sentence=sentence)
