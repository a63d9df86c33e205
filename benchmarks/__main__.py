"""Run every benchmark; results go to benchmarks/results/NAME.json."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import benchmarks

NOT_BENCHMARKS = {"__main__", "report"}


def main() -> None:
    results = Path(__file__).parent / "results"
    names = [m.name for m in pkgutil.iter_modules(benchmarks.__path__)]
    for name in sorted(set(names) - NOT_BENCHMARKS):
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--json", f"{results / name}.json"]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
