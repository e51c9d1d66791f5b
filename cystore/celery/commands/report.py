"""`celery cystore report`: what the app's tasks did, as a page, as JSON or as Markdown."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cystore.celery.commands.shared import app_store, command_options
from cystore.celery.lifecycle.redaction import Redaction
from cystore.operate.output import write_json, write_line
from cystore.operate.progress import progress
from cystore.reports import check_installed


@click.command(
    "report",
    epilog=command_options.examples(
        "report --out report", "report --out today --since 1d --name shop.charge --overwrite",
        "report --since 1h --columns count,failed,runtime_p95",
    ),
)  # fmt: skip
@click.option(
    "--out", metavar="FOLDER", type=click.Path(path_type=Path),
    help="The folder to make, with the page and the tables as Parquet; default: the page alone, on standard output.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an older report in FOLDER.")
@click.option(
    "--format", "form_name", type=click.Choice(["html", "json", "md"]),
    help="The page: HTML, JSON or Markdown; default: html with --out, else md.",
)  # fmt: skip
@click.option(
    "--since", "begin_ms", type=command_options.Moment(), help="Events from this time on, or an age: 7d."
)
@click.option("--until", "end_ms", type=command_options.Moment(), help="Events not later than this.")
@click.option("--name", "--task", "names", multiple=True, help="Only tasks of this name; may be repeated.")
@click.option(
    "--columns", metavar="NAMES", default="",
    help="Columns of the tables by task and worker, as count,failed,runtime_p95; default: all.",
)  # fmt: skip
@click.option(
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="Number of failures and workflows."
)  # fmt: skip
@click.option("--skip-damaged", is_flag=True, help="Step over damage in the log.")
@command_options.json_option
@click.pass_context
def command(
    ctx: click.Context, out: Path | None, overwrite: bool, form_name: str | None, begin_ms: int | None,
    end_ms: int | None, names: tuple[str, ...], columns: str, top: int, skip_damaged: bool, as_json: bool,
) -> None:  # fmt: skip
    """Runs, failures and run times by task, worker and hour, frequent failures, slow workflows, unfinished tasks.

    Needs cystore[report]; no Spark. The setting cystore_lifecycle_redact hides values here too, also in records that
    are older than the setting. --json writes the summary as JSON, without --out the report.
    """
    location = app_store.location_of(ctx)
    form_name = form_name or ("html" if out is not None else "json" if as_json else "md")
    with app_store.as_command_errors():
        check_installed(plots=form_name == "html")
        from cystore.reports.report import Asked, Form, report_as_text, write_report

        asked = Asked(begin_ms, None if end_ms is None else end_ms + 1, names, top, skip_damaged)
        redaction = Redaction.of(ctx.obj.app.conf, ctx.obj.app)
        form = Form(
            format=form_name,  # type: ignore[arg-type]
            columns=tuple(columns.split(",")) if columns else (),
            shown=None if redaction.names is None else redaction.text,
        )
        stores, config = [Path(location.path)], app_store.settings_of(location)
        with progress() as bar:
            if out is None:
                text = report_as_text(stores, config=config, asked=asked, form=form, report=bar)
                sys.stdout.write(text)
                return
            found = write_report(
                stores, out, config=config, asked=asked, form=form, overwrite=overwrite, report=bar
            )
    if as_json:
        write_json(found)
    else:
        write_line("  ".join(f"{name}: {value}" for name, value in found.items()))
