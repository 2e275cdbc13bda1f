"""docs/pipeline.md has the tables and the lineage that the code has; run as a program, this writes them."""

import re
from pathlib import Path

from polybus.pipeline.schemas import TABLES

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"
INPUTS = {
    "messages": "a stream, or MQTT, or files",
    "events": "the bus's event file",
    "packets": "capture files",
}
REPLACED = {"days": "by day", "whole": "made anew as a whole"}


def lineage() -> str:
    lines = ["```mermaid", "flowchart LR"]
    for name, source in INPUTS.items():
        lines += [f'    {name}_source[/"{source}"/] --> {name}']
    for layer in ("bronze", "silver", "gold"):
        lines.append(f"    subgraph {layer}")
        for name, table in TABLES.items():
            if table.layer == layer:
                lines.append(f"        {name}([{name}])" if table.view_of else f"        {name}[{name}]")
        lines.append("    end")
    lines += [f"    {source} --> {name}" for name, table in TABLES.items() for source in table.reads]
    return "\n".join([*lines, "```"])


def tables() -> str:
    lines = []
    for name, table in TABLES.items():
        kind = f"a view of `{table.view_of}`" if table.view_of else REPLACED.get(table.job, "appended")
        lines += [f"### `{name}`", "", f"{table.layer}, {kind}: {table.about}.", ""]
        columns = [f"`{field.name}` {field.dataType.simpleString()}" for field in table.schema.fields]
        lines += [", ".join(re.sub(r"(array<)?struct<.*", r"\1struct", each) for each in columns), ""]
    return "\n".join(lines).rstrip()


def written(page: str) -> str:
    for mark, text in (("lineage", lineage()), ("tables", tables())):
        begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        assert tail, f"the page has no place for {mark}"
        page = f"{head}{begin}{text}\n{end}{tail}"
    return page


def test_the_page_has_the_tables_that_the_code_has():
    assert PAGE.read_text() == written(PAGE.read_text()), "run python -m tests.pipeline.test_documentation"


def test_every_table_reads_what_there_is():
    for name, table in TABLES.items():
        assert set(table.reads) <= set(TABLES), name
        assert bool(table.reads) == (table.layer != "bronze"), name


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
