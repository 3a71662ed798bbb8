"""The stage teacher + texts → lessons: what the teacher computes of every text.

In:  an encoder, and the training pairs of a `pairs` artifact, whose texts are taken one by one; or
     the model of a task, and a file of rows.
Out: lessons-NNNNN.safetensors, of `TEXTS_AT_ONCE` texts each. Of an encoder: `ids` and `offsets` of
     [CLS] text [SEP], `vectors` of length 1, float16. Of a task: `logits`, and `reads`, the states
     that the head reads, float16.

What people search by is short, so each text is followed by a span of a few of its words. The
teacher is asked once: a student of another size, or trained otherwise, learns from the same
artifact. An interrupted attempt keeps the finished files.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import Tensor

from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import Progress, say
from cloze.artifacts.rng import address
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, finished_file, open_artifact, put_bytes
from cloze.artifacts.tokenizer import SubwordTokenizer, well_formed
from cloze.model.config import LessonsStage, TrainingMachine
from cloze.model.distillation.tasks import (
    answers_of,
    parts_of,
    read_rows,
    read_teacher,
    rows_as_problem,
)
from cloze.model.distillation.vectors import (
    VectorModel,
    read_vector_teacher,
    vector_modules,
)
from cloze.model.hugging_face.sentence_modules import DOCUMENT, QUERY
from cloze.model.inference.task_file import SPLIT
from cloze.model.tasks.features import (
    Ragged,
    Sequences,
    batches_by_length,
    encode,
    tokens_at_once,
)
from cloze.model.tasks.files.table_files import read_table
from cloze.model.tasks.files.task_table import Wanted
from cloze.model.training.distributed import start_world
from cloze.model.training.start import restart_prepared, threads_per_rank
from cloze.model.training.waiting import patient_threads

TEXTS_AT_ONCE = 2048

SPAN_WORDS = (3, 12)
"""Fewest and most words of a span: the length of most questions."""

CHARACTERS_PER_WORD = 2
"""Of scripts without spaces between words."""

UNKNOWN_SHARE = 0.2
"""Share of unknown tokens from which texts are taken to be in another language."""

# N texts, H width of a vector


def make_lessons(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    stage = parse(LessonsStage, table.config, source="stage table")
    machine = parse(TrainingMachine, table.machine, source="stage table, machine")
    threads = threads_per_rank(machine)
    world = start_world(machine, threads=threads)
    with patient_threads(threads):
        make = _answers if stage.texts else _vectors
        return make(table, stage, world.device)


def _answers(table: StageTable, stage: LessonsStage, device: torch.device) -> Artifact:
    """What the model of a task answers to the rows that are learnt."""
    teacher = read_teacher(table.input_path("teacher"), stage.task)
    rows, _ = parts_of(read_rows(teacher, stage.texts), stage.seed)
    problem = rows_as_problem(teacher, rows)
    model = teacher.model.to(device)
    model.encoder.pack()
    # Of one row there may be several sequences (windows of a long text, candidates of a question);
    # lessons are of sequences, in the order of the rows.
    sequences = np.arange(len(problem.sequences[SPLIT]))
    progress = Progress("lessons", len(sequences), unit="texts")
    entries = []
    for number, first in enumerate(range(0, len(sequences), TEXTS_AT_ONCE)):
        chosen = sequences[first : first + TEXTS_AT_ONCE]
        name = f"lessons-{number:05}.safetensors"
        # The texts of a file depend on its number alone, so one that is there is as this attempt
        # would make it.
        entry = finished_file(table.output, name)
        if entry is None:
            logits, reads = answers_of(model, problem, chosen)
            arrays = {"logits": torch.from_numpy(logits), "reads": torch.from_numpy(reads)}
            entry = put_bytes(table.output, save(arrays), name=name, rows=len(chosen))
        entries.append(entry)
        progress.advance(len(chosen))
    statistics = {"rows": len(rows), "texts": len(sequences)}
    return commit(table, entries, statistics=statistics)


def read_answers(lessons: Artifact) -> tuple[Tensor, Tensor]:
    """Logits and states of all rows that are learnt, in their order."""
    files = [load(lessons.read_bytes(name)) for name in _names(lessons)]
    return torch.cat([one["logits"] for one in files]), torch.cat([one["reads"] for one in files])


def _vectors(table: StageTable, stage: LessonsStage, device: torch.device) -> Artifact:
    """The vectors of texts and of spans of them."""
    texts = training_texts(open_artifact(table.input_path("texts")))
    teacher = read_vector_teacher(table.input_path("teacher"))
    modules, tokenizer = vector_modules(teacher), teacher.tokenizer
    # A teacher that truncates texts earlier than configured has no vectors of longer ones to teach.
    longest = min(stage.max_seq_length, modules.max_seq_length)
    prompts = modules.prompt(DOCUMENT), modules.prompt(QUERY)
    entries, tokens, truncated, unknown = [], 0, 0, 0
    model = VectorModel(teacher.encoder(pretrained=True, seed=0), modules)
    model.to(device).eval()
    model.encoder.pack()
    progress = Progress("lessons", 2 * len(texts), unit="texts")
    for number, first in enumerate(range(0, len(texts), TEXTS_AT_ONCE)):
        chosen = texts[first : first + TEXTS_AT_ONCE]
        asked = [
            modules.text(well_formed(text), prompt)
            for whole in chosen
            for text, prompt in zip((whole, span_of(whole, stage.seed)), prompts, strict=True)
        ]
        sequences = encode(tokenizer, asked, max_seq_length=longest)
        tokens += len(sequences.input_ids.values)
        truncated += sequences.truncated
        unknown += int(np.count_nonzero(sequences.input_ids.values == tokenizer.unk_id))
        # Looked at in the first file only: a folder in another language shows at once, and hours
        # are saved.
        if not first:
            refuse_another_language(sequences, tokenizer)
        name = f"lessons-{number:05}.safetensors"
        entry = finished_file(table.output, name)
        if entry is None:
            content = lesson_bytes(sequences, vectors_of(model, sequences))
            entry = put_bytes(table.output, content, name=name, rows=len(asked))
        entries.append(entry)
        progress.advance(len(asked))
    if truncated:
        say(f"lessons: {truncated:,} texts of more than {longest} tokens were truncated")
    statistics = {
        "texts": 2 * len(texts),
        "tokens": tokens,
        "truncated": truncated,
        "unknown_share": unknown / tokens,
    }
    return commit(table, entries, statistics=statistics)


def training_texts(pairs: Artifact) -> list[str]:
    """The different texts of the training pairs, in their order."""
    wanted = Wanted(required=("query", "passage"))
    rows = read_table(pairs.path("retrieval/train.jsonl"), wanted)
    both = zip(rows.columns["query"], rows.columns["passage"], strict=True)
    return [*dict.fromkeys(str(text) for pair in both for text in pair)]


def span_of(text: str, seed: int) -> str:
    """A few consecutive words of `text`, or characters of a script without spaces."""
    draw = np.random.default_rng(address(seed, "span", text))
    fewest, most = SPAN_WORDS
    size, words = int(draw.integers(fewest, most + 1)), text.split()
    # A text of a few words, or of a script that does not space them, has no words to take a span
    # of.
    if len(words) > fewest:
        start = int(draw.integers(0, max(len(words) - size, 0) + 1))
        return " ".join(words[start : start + size])
    size *= CHARACTERS_PER_WORD
    start = int(draw.integers(0, max(len(text) - size, 0) + 1))
    return text[start : start + size]


def refuse_another_language(sequences: Sequences, tokenizer: SubwordTokenizer) -> None:
    """Refuse texts that the teacher's vocabulary cannot spell."""
    ids = sequences.input_ids.values
    share = float(np.mean(ids == tokenizer.unk_id))
    if share > UNKNOWN_SHARE:
        raise UsageError(
            f"the texts: {share:.0%} of their tokens are {tokenizer.vocabulary[tokenizer.unk_id]} "
            "to the teacher, whose vectors of them say nothing; expected texts in a language that "
            "it knows: choose another teacher, or other texts"
        )


@torch.inference_mode()
def vectors_of(model: VectorModel, sequences: Sequences) -> NDArray[np.float16]:
    """[N, H] the vectors of all sequences, in their order."""
    device = next(model.parameters()).device
    found: dict[int, NDArray[np.float16]] = {}
    for rows in batches_by_length(sequences.lengths, token_budget=tokens_at_once(device)):
        # Half precision: a cosine of two such vectors is right to three digits, at half the disk.
        vectors = model(sequences.batch(rows).to(device)).half().cpu().numpy()
        found.update(zip(rows.tolist(), vectors, strict=True))
    return np.stack([found[row] for row in range(len(sequences))])


def lesson_bytes(sequences: Sequences, vectors_NH: NDArray[np.float16]) -> bytes:
    """One file of the artifact."""
    ids = sequences.input_ids
    arrays = {"ids": ids.values.astype(np.int32), "offsets": ids.offsets, "vectors": vectors_NH}
    return save({name: torch.from_numpy(array) for name, array in arrays.items()})


def read_lessons(lessons: Artifact) -> tuple[Sequences, Tensor]:
    """All texts, and their vectors, [N, H] float16."""
    files = [load(lessons.read_bytes(name)) for name in _names(lessons)]
    # Each file counts its offsets from 0; joined, they are sums of lengths again.
    lengths = torch.cat([one["offsets"].diff() for one in files])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).numpy()
    ids = Ragged(torch.cat([one["ids"] for one in files]).numpy(), offsets)
    return Sequences(ids, ids.lengths), torch.cat([one["vectors"] for one in files])


def _names(lessons: Artifact) -> Iterator[str]:
    return (entry.name for entry in lessons.manifest.files)


if __name__ == "__main__":
    restart_prepared()
    run_program(make_lessons)
