"""What a head that compares both texts is worth to a small encoder (`compare_texts`).

    python benchmarks/afternoon/pair_heads.py configs/afternoon.toml ENCODER [--seeds 0 1]

In:  the configuration, with its tasks in the current folder; an artifact or run of pre-training.
Out: benchmarks/results/pair_heads.json: of each task of pairs, head and seed the scores on dev, by
     the short grid.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.afternoon.short_grid import CELL, read, result_of, scores_of
from benchmarks.measuring import Arguments, machine, write_result
from cloze.flows.config import RunConfig


def with_heads(run: RunConfig, encoder: str, *, compare: bool, seed: int) -> RunConfig:
    """The tasks of pairs, fine-tuned from `encoder` with one kind of head."""
    table = run.model_dump(mode="json")
    name = f"heads-{'comparison' if compare else 'cls'}-{seed}"
    tasks = [
        {**task.model_dump(mode="json"), **CELL, "compare_texts": compare}
        for task in run.finetune.tasks
        if task.compare_texts
    ]
    protocol = {"grid": None, "seeds": [seed], "initialisations": ["pretrained"], "save": "none"}
    finetune = {**table["finetune"], **protocol, "encoder": encoder, "tasks": tasks}
    return RunConfig.model_validate({"name": name, "finetune": finetune})


def main() -> None:
    """Fine-tune with both heads."""
    parser = Arguments(__doc__, output="pair_heads.json")
    parser.add_argument("config")
    parser.add_argument("encoder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_options(workspace="runs")
    arguments = parser.parse_args()
    run = read(arguments.config)
    found: dict[str, object] = {
        "machine": machine(),
        "cell": CELL,
        "encoder": Path(arguments.encoder).name,
    }
    for compare in (False, True):
        for seed in arguments.seeds:
            variant = with_heads(run, arguments.encoder, compare=compare, seed=seed)
            found[variant.name] = scores_of(result_of(variant, space=arguments.workspace))
    write_result(arguments.output, found)


if __name__ == "__main__":
    main()
