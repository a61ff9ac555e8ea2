"""`unisono export`: the records of a run as a table."""

from __future__ import annotations

import argparse

from unisono.records.export import export_csv, export_parquet
from unisono.records.runfile import read_run

FORMATS = {"parquet": export_parquet, "csv": export_csv}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "export",
        description="Write one row per training step, with a column per number and rank.",
        epilog="A later attempt takes the place of the steps that it repeats.",
    )
    parser.add_argument("run", metavar="RUN", help="the run's directory or its run.jsonl")
    parser.add_argument("--to", choices=FORMATS, required=True, help="csv leaves out matrices and layer groups")
    parser.add_argument("file", metavar="FILE", help="the table to write; an existing file is replaced")


def run(args: argparse.Namespace) -> int:
    FORMATS[args.to](read_run(args.run), args.file)
    return 0
