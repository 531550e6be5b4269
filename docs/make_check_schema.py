"""Writes docs/check.schema.json, the JSON Schema of what `dnc check --json` prints.

Run it after a change of `dnc/editing/report.py`: python docs/make_check_schema.py
"""

from pathlib import Path

from dnc.editing.report import schema

if __name__ == "__main__":
    Path(__file__).with_name("check.schema.json").write_text(schema(), encoding="utf-8")
