"""The `grpo-mega` command. Starts fast: torch is imported by the commands that need it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_mega.config import Config, dump_config, load_config
from grpo_mega.errors import UserError
from grpo_mega.runtime import environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpo_mega.runtime.distributed import Runtime

EXIT_USER_ERROR = 2
EXIT_LOST_RANK = 3
LOST_RANK_DELAY_S = 5.0
"""A rank that lost contact waits this long, so that the launcher sees the rank that failed first, first."""

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help="GRPO on megatron-core and vLLM."
)

ConfigOption = Annotated[list[Path], typer.Option("--config", help="YAML file; repeat to merge, later ones win.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, e.g. optimizer.learning_rate=1e-5.")]


@app.command()
def train(
    config: ConfigOption,
    overrides: Overrides = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate, print the resolved configuration and the plan, and exit.")
    ] = False,
    ranks: Annotated[int, typer.Option(help="Number of ranks to plan for with --dry-run; default: this launch's.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's newest checkpoint.")] = False,
) -> None:
    """Train. Start with `torchrun --nproc-per-node N -m grpo_mega train --config FILE`."""
    settings = load_config(config, overrides or ())
    plan = _plan(settings, ranks or environment.torchrun_world_size())
    if dry_run:
        typer.echo(dump_config(settings))
        typer.echo(plan)
        return
    if environment.torchrun_rank() == 0:
        typer.echo(plan, err=True)

    def run(runtime: Runtime) -> None:
        from grpo_mega.training.trainer import build_trainer

        build_trainer(settings, runtime, resume).fit()

    _run_distributed(settings, run)


@app.command(name="eval")
def evaluate_command(
    config: ConfigOption,
    overrides: Overrides = None,
    show: Annotated[int, typer.Option(help="Also print the first so many completions.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Rewards of model.path on data.eval. For a run's result: `eval --config run.yaml model.path=runs/<name>/hf`."""
    settings = load_config(config, overrides or ())
    if settings.data.eval is None:
        raise UserError("eval needs data.eval")
    _plan(settings, environment.torchrun_world_size())

    def run(runtime: Runtime) -> None:
        from grpo_mega.training.standalone_evaluation import evaluate_model

        metrics, samples = evaluate_model(settings, runtime, show)
        if runtime.rank != 0:
            return
        if as_json:
            typer.echo(json.dumps({**metrics, **({"samples": samples} if show else {})}, ensure_ascii=False))
            return
        for sample in samples:
            typer.echo(json.dumps(sample, ensure_ascii=False))
        typer.echo("\n".join(f"{name:42} {value:.4f}" for name, value in metrics.items()))

    _run_distributed(settings, run)


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(help="Directory of a run, e.g. runs/quickstart.")],
    png: Annotated[Path | None, typer.Option(help="Also write the reward curve to this PNG.")] = None,
) -> None:
    """Write report.html of a run, finished or not."""
    from grpo_mega.telemetry.report import write_report, write_reward_png

    typer.echo(write_report(run_dir))
    if png is not None:
        write_reward_png(run_dir, png)
        typer.echo(png)


@app.command(name="init-model")
def init_model(
    out: Annotated[Path, typer.Option(help="Directory to make; must not exist or be empty.")],
    family: Annotated[str, typer.Option(help="llama, mistral, qwen2 or qwen3.")] = "qwen2",
    hidden_size: Annotated[int, typer.Option()] = 128,
    intermediate_size: Annotated[int, typer.Option()] = 256,
    num_hidden_layers: Annotated[int, typer.Option()] = 4,
    num_attention_heads: Annotated[int, typer.Option()] = 4,
    num_key_value_heads: Annotated[int, typer.Option()] = 2,
    max_position_embeddings: Annotated[int, typer.Option()] = 512,
    tie_word_embeddings: Annotated[bool, typer.Option()] = False,
    initializer_range: Annotated[float, typer.Option(help="Standard deviation of the random weights.")] = 0.02,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Make a tiny random checkpoint with a character tokenizer."""
    from checkpoint_conversion.init_model import write_random_checkpoint

    parameters = write_random_checkpoint(
        out,
        family,
        seed,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_key_value_heads,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tie_word_embeddings,
        initializer_range=initializer_range,
    )
    typer.echo(f"{out}: {family}, {parameters:,} parameters")


def _plan(settings: Config, world_size: int) -> str:
    from checkpoint_conversion.families import read_architecture
    from grpo_mega.training.checks import check_run, describe_run

    architecture = read_architecture(settings.model.path)
    topology = check_run(settings, architecture, world_size)
    return describe_run(settings, architecture, topology)


def _run_distributed(settings: Config, body: Callable[[Runtime], None]) -> None:
    """Join the other ranks, run `body` on all, leave."""
    environment.silence_library_warnings()
    from torch.distributed.elastic.multiprocessing.errors import record

    from grpo_mega.runtime.distributed import start_runtime, stop_runtime

    @record
    def run() -> None:
        try:
            body(start_runtime(settings.parallel))
        except UserError as error:
            _leave_with_message(error)
        except RuntimeError as error:
            _leave_if_another_rank_died(error)
            raise
        stop_runtime()

    run()


def _leave_if_another_rank_died(error: RuntimeError) -> None:
    """A collective that fails because its peer is gone is not the first error: one line, after the first is seen."""
    import torch.distributed as dist

    text = str(error)
    if isinstance(error, dist.DistError) or "gloo" in text.lower():
        rank = environment.torchrun_rank()
        typer.echo(f"rank {rank}: another rank is gone, leaving ({text.splitlines()[0]})", err=True)
        sys.stderr.flush()
        time.sleep(LOST_RANK_DELAY_S)
        sys.exit(EXIT_LOST_RANK)


def _leave_with_message(error: UserError) -> None:
    """Rank 0 says what is wrong; the others, which know the same, leave after it."""
    if environment.torchrun_rank() == 0:
        typer.echo(f"error: {error}", err=True)
    else:
        time.sleep(LOST_RANK_DELAY_S)
    sys.exit(EXIT_USER_ERROR)


def main() -> None:
    """Entry point: the user's mistakes become one message and exit code 2."""
    try:
        app()
    except UserError as error:
        _leave_with_message(error)
