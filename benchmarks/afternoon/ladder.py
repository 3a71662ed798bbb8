"""What each change of the afternoon's recipe is worth at equal processor time.

    python benchmarks/afternoon/ladder.py configs/afternoon.toml --steps 1000 --seeds 0 1

In:  the configuration, with its text and tasks in the current folder.
Out: benchmarks/results/recipes.json: of every rung and seed the held-out loss and the scores of the
     short grid, beside the steps that its time was good for.

Every rung changes one thing, and the last one everything back to the paper's. Rungs have equal
seconds and not equal steps: the processor time of a token is measured in turns on a few steps, in
one thread, so that other programs do not disturb it, and converted into steps. What has been run is
found again, so that the command can be interrupted and repeated.
"""

import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.afternoon.short_grid import read, result_of, scores_of, shortened
from benchmarks.measuring import Arguments, Figures, machine, write_result
from benchmarks.training.product_steps import engine_of
from benchmarks.training.workload import cut
from cloze.artifacts.config import flat
from cloze.flows.config import RunConfig
from cloze.model.config import PhaseConfig, PretrainStage
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.training.distributed import World, join_world
from cloze.model.training.pretrain import cpu_token_budget

Settings = dict[str, object]

PAIRLESS: Settings = {"examples.second_segment": "none", "pretrain.next_sentence_loss": False}
PUBLISHED: Settings = {
    "vocabulary.size": 30522,
    "encoder.num_hidden_layers": 2,
    "encoder.hidden_size": 128,
    "encoder.num_attention_heads": 2,
    "encoder.intermediate_size": 512,
}
LINEAR: Settings = {
    "pretrain.optimizer.schedule": "linear",
    "pretrain.optimizer.decay_share": 0.1,  # the default, which is of the other schedule
}
SHORT_FIRST = [(32, 0.3), (64, 0.55), (128, 0.15)]

RUNGS: dict[str, Settings] = {
    "base": {},
    "random word embeddings": {"word_vectors": None},
    "30 % masked": {"examples.masking.masked_lm_prob": 0.3},
    "AdamW": {"pretrain.optimizer.name": "adamw", "pretrain.optimizer.learning_rate": 1e-3},
    "linear decay": LINEAR,
    "no pairs": PAIRLESS,
    "sentence order": {"examples.second_segment": "sentence_order"},
    "modern, no pairs": {
        **PAIRLESS,
        "encoder.family": "modern",
        "encoder.preset": None,
        "encoder.intermediate_size": 688,  # three matrices in place of two
        "encoder.hidden_act": "gelu",
        "encoder.layer_norm_eps": 1e-5,
    },
    "32 tokens first": {
        "examples.max_seq_lengths": [length for length, _ in SHORT_FIRST],
        "pretrain.phases": [
            {"max_seq_length": length, "share": share} for length, share in SHORT_FIRST
        ],
    },
    "batches of 512": {"pretrain.batch_size": 512, "pretrain.optimizer.learning_rate": 4e-3},
    "4,096 word-pieces": {"vocabulary.size": 4096},
    "16,384 word-pieces, 3 × 192": {  # with 8,192 a quarter of SST-2 is split
        "vocabulary.size": 16384,
        "encoder.hidden_size": 192,
        "encoder.num_attention_heads": 3,
        "encoder.intermediate_size": 768,
    },
    "deeper, 6 × 192": {
        "encoder.num_hidden_layers": 6,
        "encoder.hidden_size": 192,
        "encoder.num_attention_heads": 3,
        "encoder.intermediate_size": 768,
    },
    "dropout 0.1": {
        "encoder.hidden_dropout_prob": 0.1,
        "encoder.attention_probs_dropout_prob": 0.1,
    },
    "published shape, 2 × 128": PUBLISHED,
    "faithful": {
        **PUBLISHED,
        "word_vectors": None,
        "encoder.initializer_range": 0.02,
        "encoder.hidden_dropout_prob": 0.1,
        "encoder.attention_probs_dropout_prob": 0.1,
        "pretrain.optimizer.name": "adamw",
        "pretrain.optimizer.learning_rate": 1e-3,
        **LINEAR,
    },
}
"""What each rung changes. Google's rate, 1e-4, would leave a run this short at its beginning. Word
vectors, which rungs of one vocabulary and width share, take 40 s that no rung is charged with."""

SHORTEST = 32
"""Share of the steps that the warm-up takes, as one in so many."""


def rung_of(base: RunConfig, name: str, *, steps: int, seed: int) -> RunConfig:
    """The run of one rung and seed, of so many steps."""
    settings = {
        "examples.masking.heldout_masked_lm_prob": 0.15,  # losses of all rungs are comparable
        # Rungs are compared with each other alone.
        "evaluate.count_model_tokens": 1_000_000,
        "evaluate.examples": 4000,
        "pretrain.evaluate_every": max(steps // 4, 1),
        "pretrain.steps": steps,
        "pretrain.seed": seed,
        "pretrain.optimizer.warmup_steps": steps // SHORTEST,
        **RUNGS[name],
    }
    short = re.sub(r"[^A-Za-z0-9]+", "-", name)
    return shortened(base, f"{base.name}-{short}-{steps}-{seed}", settings, cola=False)


def batch_of(run: RunConfig, phase: PhaseConfig, rng: np.random.Generator) -> list[Example]:
    """A batch of full sequences of random tokens: what they say takes no time."""
    length, size = phase.max_seq_length, run.vocabulary.size
    masked = max(1, round(run.examples.masking.masked_lm_prob * length))
    pairs = run.examples.second_segment != "none"
    return [
        Example(
            input_ids=rng.integers(5, size, length).tolist(),
            segment_a_length=length // 2 if pairs else length,
            masked_lm_positions=sorted(rng.choice(length, masked, replace=False).tolist()),
            masked_lm_ids=rng.integers(5, size, masked).tolist(),
            next_sentence_label=0 if pairs else -1,
        )
        for _ in range(run.pretrain.batch_size)
    ]


def step_of(run: RunConfig, world: World) -> Callable[[], float]:
    """Processor seconds of one step, averaged over the phases of `run`."""
    stage = PretrainStage(seed=0, encoder=run.encoder, pretrain=run.pretrain)
    engine = engine_of(stage, run.vocabulary.size, world=world)
    rng = np.random.default_rng(0)
    batches = [(batch_of(run, phase, rng), phase.share) for phase in run.pretrain.phases]
    budget = cpu_token_budget(run.encoder)

    def step() -> float:
        seconds = 0.0
        for batch, share in batches:
            began = time.process_time()
            masked = sum(len(example.masked_lm_ids) for example in batch)
            for micro, part in enumerate(cut(batch, budget)):
                sums = engine.forward(pack_sequences(part), dropout=micro)
                # Without pairs no example has a label; what is divided by infinity adds nothing.
                labelled = len(batch) if run.pretrain.next_sentence_loss else float("inf")
                engine.backward(sums.loss(masked, labelled))
            # Always the first step of the schedule: its rate is 0 or small, and the time is that of
            # any.
            engine.step(0, torch.zeros(0))
            seconds += share * (time.process_time() - began)
        return seconds

    return step


def seconds_per_step(runs: dict[str, RunConfig], *, rounds: int) -> dict[str, float]:
    """The median processor seconds of a step of each run, all measured in turns."""
    world = join_world(threads=1, timeout=600.0, device="cpu")
    steps = {name: step_of(run, world) for name, run in runs.items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            taken[name].append(step())
    # without the first round, which allocates
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def main() -> None:
    """Measure the steps, then run every rung and seed; results are written after each."""
    parser = Arguments(__doc__, output="recipes.json", steps=1000, rounds=3, seeds=[0, 1])
    parser.add_argument("config")
    parser.add_argument("--rungs", nargs="+", choices=list(RUNGS), default=list(RUNGS))
    parser.add_options(space="runs", on="")
    arguments = parser.parse_args()
    base = read(arguments.config)
    names = ["base", *(name for name in arguments.rungs if name != "base")]
    first = {name: rung_of(base, name, steps=arguments.steps, seed=0) for name in names}
    seconds = seconds_per_step(first, rounds=arguments.rounds)
    found: Figures = {"machine": machine(), "steps": arguments.steps, "rungs": {}}
    found["share"] = arguments.steps / base.pretrain.steps
    heldout = ""
    for seed in arguments.seeds:
        for name in names:
            # As many steps as fit into the seconds of the base.
            steps = round(arguments.steps * seconds["base"] / seconds[name])
            run = rung_of(base, name, steps=steps, seed=seed)
            # A loss per token of another vocabulary is a loss of other tokens.
            comparable = run.vocabulary == base.vocabulary
            if comparable and run.examples != first["base"].examples:
                evaluate = run.evaluate.model_copy(update={"heldout_examples": heldout})
                run = run.model_copy(update={"evaluate": evaluate})
            began = time.monotonic()
            summary = result_of(run, space=arguments.space, machine=arguments.on)
            # The first run's held-out examples judge all that have its vocabulary.
            heldout = heldout or run.name
            headline = summary.headline
            loss = headline.mlm_loss if comparable and headline else None
            rung = found["rungs"].setdefault(
                name,
                {
                    "settings": flat(RUNGS[name]),  # type: ignore[arg-type]
                    "parameters": run.encoder.parameters(run.vocabulary.size),
                    "processor_seconds_per_step": round(seconds[name], 4),
                    "steps": steps,
                    "runs": [],
                },
            )
            scores = {task: round(score, 2) for task, score in scores_of(summary).items()}
            minutes = (time.monotonic() - began) / 60
            rung["runs"].append({"seed": seed, "loss": loss, "scores": scores})
            print(f"{name}, seed {seed}: {steps} steps, loss {loss}, {scores}, {minutes:.1f} min")
            write_result(arguments.output, found)


if __name__ == "__main__":
    main()
