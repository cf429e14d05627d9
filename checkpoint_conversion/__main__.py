"""`python -m checkpoint_conversion`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from grpo_mega.errors import UserError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def conversion() -> None:
    """Checkpoints in and out of the trainer."""


@app.command(name="import-gguf")
def import_gguf_command(
    out: Annotated[Path, typer.Option(help="Directory to make.")],
    gguf: Annotated[Path | None, typer.Option(help="The .gguf file.")] = None,
    package: Annotated[str | None, typer.Option(help="An installed Python package that ships one .gguf file.")] = None,
) -> None:
    """Dequantise a GGUF file into a Hugging Face checkpoint."""
    from checkpoint_conversion.gguf import find_packaged_gguf, import_gguf

    if (gguf is None) == (package is None):
        raise UserError("give either --gguf FILE or --package NAME")
    source = gguf if gguf is not None else find_packaged_gguf(str(package))
    typer.echo(f"{out}: {import_gguf(source, out):,} parameters from {source.name}")


def main() -> None:
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
