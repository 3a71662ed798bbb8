"""Stage `vocabulary`: a WordPiece tokenizer learnt from the corpus, or a given tokenizer.

In:  the corpus; or an existing vocab.txt or tokenizer.json; or both, to add words of the corpus.
Out: tokenizer.json, and for WordPiece vocab.txt; independent of how the corpus is split into files.
     words.json, if words were added (pipeline/new_words.py).

    python -P -m cloze.pipeline.vocabulary --config TABLE.json [engine options]

The sample consists of distinct training documents, in an order given by their digests, up to a
number of bytes. Each worker keeps the candidates of its shard, those below a limit estimated from
the size of the corpus; the launcher takes the first of all candidates. A second round is needed
only if the limit was too low.

The trainer of `tokenizers` is not deterministic by itself: it numbers the continuing characters
(`##a`) in the order of a hash map, and breaks ties by number. So the continuing characters are
passed to it in a fixed order, as if they were special tokens, and the alphabet is chosen here.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import JsonValue
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import (
    digest_array,
    digest_bytes,
    digest_halves,
    is_first_of_equals,
    starts_of,
)
from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import naming_full_disk
from cloze.artifacts.progress import Progress, say
from cloze.artifacts.rng import document_streams, stream_seed
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.runtime.temporary import temporary_directory
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import WORK, Artifact, commit, put_bytes, put_json, scratch_directory
from cloze.artifacts.tables import TOKEN_DIGEST_BYTES
from cloze.artifacts.tokenizer import (
    CONTINUATION,
    MAX_CHARACTERS_PER_WORD,
    SPECIAL_TOKENS,
    UNK,
    SubwordTokenizer,
    WordPieceTokenizer,
    bert_pipeline,
    read_vocabulary,
)
from cloze.pipeline.config.made_lists import with_made_lists
from cloze.pipeline.config.settings import CorpusConfig, PairsStage, VocabularyStage
from cloze.pipeline.new_words import NewWords, choose_words, counted
from cloze.pipeline.pairs import training_texts
from cloze.pipeline.readers.input_shards import CorpusFiles, InputShard
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import WorkQueue, for_each
from cloze.pipeline.text.duplicates import DropList, read_drop_list
from cloze.pipeline.text.filters import Reason
from cloze.pipeline.text.splits import (
    FEWEST_DOCUMENTS,
    HELDOUT_SPLIT,
    TRAIN_SPLIT,
    assign_splits,
    divide,
    heldout_count,
)
from cloze.pipeline.text.texts import TextBlock, read_texts, why_none_is_left
from cloze.pipeline.tokenizer.wordpiece import count_pre_tokens, is_isolated

USUAL_ALPHABET = 1000
"""Characters in the alphabet if there are so many; words with rarer ones are left out."""

UNCOVERED = 1e-4
"""Share of the characters of the text that may be outside the alphabet: more than the usual number
are taken, until they cover the rest. In any case they take up at most half of the vocabulary."""

MIN_PAIR_COUNT = 2
"""Least count of a pair that is merged."""

CANDIDATES_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.uint64()),
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
        pa.field("split", pa.uint8()),
        pa.field("text", pa.large_binary()),
    ]
)


def make_vocabulary(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: read the given tokenizer, or learn one from a sample."""
    stage = with_made_lists(parse(VocabularyStage, table.config, source="stage vocabulary"), table)
    config, files = stage.vocabulary, []
    statistics: dict[str, JsonValue] = {}
    if not config.path:
        with scratch_directory(table.output) as scratch:
            paths = _sample(stage, Runner.of(table, options), scratch=scratch)
            tokenizer: SubwordTokenizer = learn(paths, stage)
    else:
        tokenizer = read_vocabulary(
            config.path, lowercase=config.lowercase, strip_accents=config.strip_accents
        )
        if config.words:
            added = new_words(stage, tokenizer, Runner.of(table, options))
            tokenizer = tokenizer.with_words([one.word for one in added.words])
            statistics = added.statistics(wanted=config.words)
            files = [put_json(table.output, added.table(), name="words.json")]
    files += [put_bytes(table.output, file, name=name) for name, file in tokenizer.files().items()]
    return commit(
        table,
        files,
        statistics={
            "tokenizer_digest": tokenizer.digest,
            "vocabulary_size": tokenizer.size,
            **statistics,
        },
    )


def new_words(stage: VocabularyStage, tokenizer: SubwordTokenizer, runner: Runner) -> NewWords:
    """The words of the training documents to add to a given tokenizer."""
    tokenizer.with_words(())  # refuses one to which none can be added
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise AssertionError("words are added to WordPiece only")
    if stage.pairs:
        pairs = PairsStage(
            seed=stage.seed, corpus=stage.corpus, cleaning=stage.cleaning, pairs=stage.pairs
        )
        counts = counted((text.encode() for text in training_texts(pairs)), tokenizer)
    else:
        with scratch_directory(runner.output) as scratch:
            paths = _sample(stage, runner, scratch=scratch)
            counts = counted(chain.from_iterable(_training_sample(paths, stage)), tokenizer)
    return choose_words(counts, wanted=stage.vocabulary.words)


def sample_shard(
    shard: InputShard, *, stage: VocabularyStage, limit: int, directory: str, queue: WorkQueue
) -> int:
    """Write the shard's candidates to `directory`; returns its number of documents.

    Documents of a rank below `limit` are candidates; 2**64 takes all.
    """
    documents = 0
    beside = filesystem.local_path(directory) if filesystem.is_local(directory) else ""
    with temporary_directory(beside) as scratch, naming_full_disk(scratch):
        local = os.path.join(scratch, "candidates.arrow")
        with pa.OSFile(local, "wb") as sink, pa.ipc.new_file(sink, CANDIDATES_SCHEMA) as writer:
            for block in read_texts(shard, corpus=stage.corpus, cleaning=stage.cleaning):
                documents += len(block.reasons_D)
                writer.write_batch(_candidates(block, stage, limit))
        filesystem.put_file(local, filesystem.join(directory, f"{shard.name}.arrow"))
    queue.report(MB=shard.megabytes, documents=documents)
    return documents


def learn(paths: list[str], stage: VocabularyStage) -> WordPieceTokenizer:
    """Learn a vocabulary from the candidates at `paths`."""
    config = stage.vocabulary
    pre_tokens: Counter[bytes] = Counter()
    for texts in _training_sample(paths, stage):
        pre_tokens.update(count_pre_tokens(b"".join(texts), lowercase=config.lowercase))
    if not pre_tokens:
        if why := why_none_is_left(stage.corpus, stage.cleaning):
            raise UsageError(f"corpus: no training document to learn a vocabulary from: {why}")
        raise UsageError(
            "corpus: no training document to learn a vocabulary from; "
            "check the paths, the readers and [cleaning]"
        )
    words = word_counts(pre_tokens, lowercase=config.lowercase, strip_accents=config.strip_accents)
    say(f"vocabulary: learning {config.size:,} word-pieces from {len(words):,} distinct words")
    pieces = learn_pieces(words, size=config.size, most=config.alphabet)
    strip_accents = None if config.strip_accents == config.lowercase else config.strip_accents
    return WordPieceTokenizer(tuple(pieces), config.lowercase, strip_accents)


def _training_sample(paths: list[str], stage: VocabularyStage) -> Iterator[list[bytes]]:
    """The texts of the sample, from the candidates at `paths`."""
    # Ranks, not files, order the sample, so all candidates are needed before the first text is
    # read.
    return draw_sample(
        paths,
        wanted_bytes=stage.vocabulary.sample_bytes,
        drop_list=read_drop_list(stage.cleaning.drop_list),
        corpus=stage.corpus,
    )


def _sample(stage: VocabularyStage, runner: Runner, *, scratch: str) -> list[str]:
    """Local paths of files of candidates, with enough text or all there is."""
    output = runner.output
    files = CorpusFiles(stage.corpus, output)
    shards = files.shards()
    wanted = stage.vocabulary.sample_bytes
    # Above the estimate, since a second round reads the whole corpus again.
    limit = sample_limit(wanted, sum(shard.size for shard in shards))
    is_local = runner.is_local and filesystem.is_local(output)
    directory = scratch if is_local else filesystem.join(output, WORK)
    paths = [os.path.join(scratch, f"{shard.name}.arrow") for shard in shards]
    # Compressed files and markup make the estimate wrong, so it is checked. Starting again is
    # simpler than going on, and as results depend on ranks alone, a larger limit only adds
    # candidates.
    while True:
        sample = partial(sample_shard, stage=stage, limit=limit, directory=directory)
        progress = Progress("vocabulary", sum(shard.megabytes for shard in shards), unit="MB")
        runner.run(for_each(shards, sample, label="Sample"), progress)
        # Candidates that workers wrote to a remote workspace.
        for path in paths if directory != scratch else ():
            filesystem.fetch_file(filesystem.join(directory, os.path.basename(path)), path)
        # all documents were candidates, or enough text was found
        if limit >> 64 or candidate_bytes(paths) >= wanted:
            break
        limit = min(limit * 4, 1 << 64)
        say("vocabulary: the first sample was too small, drawing a larger one")
    files.require_unchanged()
    filesystem.remove_below(output, WORK)
    return paths


def sample_limit(wanted_bytes: int, corpus_bytes: int) -> int:
    """A generous limit: compressed files contain more text than bytes, markup less."""
    share = 4 * wanted_bytes / max(corpus_bytes, 1)
    return 1 << 64 if share >= 1 else int(share * 2.0**64)


def _candidates(block: TextBlock, stage: VocabularyStage, limit: int) -> pa.RecordBatch:
    """Training documents below the limit with text, documents of held-out sources without.

    Only the launcher can tell how few documents are divided (`divide`). For that, include the
    training documents with the smallest digests, without text; and the documents drawn to be held
    out with the smallest digests and the largest, with text, since they may be used for training.
    """
    digests_D2 = block.digests_D2
    splits_D = assign_splits(
        block.digests_D2, source=block.source, corpus=stage.corpus, seed=stage.seed
    )
    ranks_D = document_streams(digests_D2, stream_seed(stage.seed, "vocabulary"))
    kept_D = block.reasons_D == Reason.KEPT
    sampled_D = kept_D & (splits_D != HELDOUT_SPLIT)
    # Ranks are uniform, so those below the limit are a fair sample of any corpus, and the same
    # however it is cut into shards. Documents of held-out sources are sampled alike, since a text
    # that is in both must be found to be a duplicate.
    if limit < 1 << 64:
        sampled_D &= ranks_D < np.uint64(limit)
    trains = np.flatnonzero(kept_D & (splits_D == TRAIN_SPLIT))
    # Which rule divides a small corpus depends on whether there are fewer than three distinct
    # documents at all, and its border is the smallest digest drawn for training or the largest
    # drawn to be held out. Three of the smallest and the largest of every block tell these for the
    # union, so they are listed whatever their ranks. Distinct ones: copies of one text must not
    # take all three places.
    _, smallest = np.unique(digests_D2[trains, 0], return_index=True)
    listed_D = sampled_D.copy()
    listed_D[trains[smallest[:FEWEST_DOCUMENTS]]] = True
    drawn = np.flatnonzero(kept_D & (splits_D == HELDOUT_SPLIT))
    _, smallest = np.unique(digests_D2[drawn, 0], return_index=True)
    drawn = drawn[[*smallest[:FEWEST_DOCUMENTS], *smallest[-1:]]]
    listed_D[drawn] = True
    with_text_D = sampled_D & (splits_D == TRAIN_SPLIT)
    with_text_D[drawn] = True
    # Texts are most of the bytes, so they are written only where a document may be chosen for the
    # sample.
    which = np.flatnonzero(listed_D)
    starts_D = block.ends_D - np.diff(block.ends_D, prepend=0)
    with_text = with_text_D[which].tolist()
    bounds = zip(starts_D[which].tolist(), block.ends_D[which].tolist(), with_text, strict=True)
    raw = block.text.tobytes()
    texts = [raw[start:end] if is_wanted else b"" for start, end, is_wanted in bounds]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ranks_D[which]),
            digest_array(block.digests[which]),
            pa.array(splits_D[which]),
            pa.array(texts, pa.large_binary()),
        ],
        schema=CANDIDATES_SCHEMA,
    )


def draw_sample(
    paths: Sequence[str], *, wanted_bytes: int, drop_list: DropList, corpus: CorpusConfig
) -> Iterator[list[bytes]]:
    """The texts of the sample, those of each file of candidates together.

    Documents are taken by rank until there are enough bytes, at least one. Held-out parts of few
    documents (`divide`, pipeline/text/splits.py) are excluded.
    """
    tables = [_read(path) for path in paths]
    candidates = pa.concat_tables(tables)
    digests_D2 = digest_halves(digest_bytes(candidates["document_digest"]))
    ranks, splits = candidates["rank"].to_numpy(), candidates["split"].to_numpy()
    trains, is_drawn = splits == TRAIN_SPLIT, splits == HELDOUT_SPLIT
    # A rank is a function of the digest, so copies of a text are neighbours in this order, and the
    # first of them decides: if a copy is held out, the text is not trained on.
    order = np.lexsort((trains, digests_D2[:, 1], digests_D2[:, 0], ranks))  # held-out ones first
    first = is_first_of_equals(digests_D2[order])
    once = order[first & ~drop_list.holds(digests_D2[order])]
    keys_D = digests_D2[once, 0]
    trained_D, drawn_D = (np.sort(keys_D[those[once]]) for those in (trains, is_drawn))
    # In a corpus of few documents, train and held-out ones are not as drawn.
    division = divide(trained_D, drawn_D, corpus)
    if division.rule == "draw":
        once = once[trains[once]]
    else:
        once = once[(trains | is_drawn)[once] & (keys_D >= np.uint64(division.border))]
    tail_share = corpus.heldout_share if division.rule == "tails" else 0.0
    sizes = pc.binary_length(candidates["text"]).to_numpy()[once]
    # a document that begins before the limit is taken whole
    chosen = once[starts_of(sizes) < wanted_bytes]
    start = 0
    for table in tables:
        mine = chosen[(chosen >= start) & (chosen < start + len(table))] - start
        start += len(table)
        texts: list[bytes] = table["text"].take(pa.array(np.sort(mine))).to_pylist()
        if tail_share:
            cut = [text.splitlines(keepends=True) for text in texts]
            heads = [lines[: len(lines) - heldout_count(len(lines), tail_share)] for lines in cut]
            texts = [b"".join(lines) for lines in heads]
        yield texts


def candidate_bytes(paths: Sequence[str]) -> int:
    """Bytes of text of all candidates for training."""
    tables = (_read(path) for path in paths)
    texts = (table["text"].filter(pc.equal(table["split"], TRAIN_SPLIT)) for table in tables)
    return sum(pc.sum(pc.binary_length(text)).as_py() or 0 for text in texts)


def word_counts(
    pre_tokens: Mapping[bytes, int], *, lowercase: bool, strip_accents: bool | None = None
) -> Counter[str]:
    """Count the BERT tokenizer's words from the counts of pre-tokens."""
    pipeline = bert_pipeline(
        models.WordPiece(unk_token=UNK), lowercase=lowercase, strip_accents=strip_accents
    )
    words: Counter[str] = Counter()
    for pre_token, count in pre_tokens.items():
        text = pre_token.decode("utf-8", "replace")
        # Lower-cased and split already; only other characters need the tokenizer's rules.
        if text.isascii():
            words[text] += count
            continue
        normalised = pipeline.normalizer.normalize_str(text)
        for word, _ in pipeline.pre_tokenizer.pre_tokenize_str(normalised):
            words[word] += count
    return words


def choose_alphabet(counts: Mapping[str, int], *, size: int, most: int = 0) -> list[str]:
    """The characters for a vocabulary of `size` word-pieces, the most frequent first.

    counts: the occurrences of each character. most: their number if there are so many; 0: chosen
    so that they cover the text.
    """
    # ties are broken by code point
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    room = size - len(SPECIAL_TOKENS)
    # a character may need two pieces (start of a word, inside), but not one that is always a word
    pieces = np.array([1 + (not is_isolated(character)) for character in ranked])
    if most:
        return ranked[: min(most, int(np.searchsorted(np.cumsum(pieces), room, side="right")))]
    usual = min(USUAL_ALPHABET, room // 4)
    # so many characters that their pieces take up half of the room
    fitting = int(np.searchsorted(np.cumsum(pieces), room // 2, side="right"))
    # Text covered by the first n characters, and the n from which on it is enough.
    covered = np.cumsum([counts[character] for character in ranked])
    needed = int(np.searchsorted(covered, (1 - UNCOVERED) * covered[-1])) + 1
    return ranked[: max(usual, min(needed, fitting))]


def learn_pieces(words: Mapping[str, int], *, size: int, most: int = 0) -> list[str]:
    """Up to `size` word-pieces: special tokens, characters, then the best merges.

    If the merges leave room, further characters fill it. most: see `choose_alphabet`.
    """
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    chosen = choose_alphabet(counts, size=size, most=most)
    alphabet = set(chosen)
    # Words with characters outside the alphabet become [UNK] as a whole, so nothing is learnt from
    # them.
    known = {
        word: count
        for word, count in words.items()
        if len(word) <= MAX_CHARACTERS_PER_WORD and alphabet.issuperset(word)
    }
    continuing = sorted({f"{CONTINUATION}{c}" for word in known for c in word[1:]})
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=MIN_PAIR_COUNT,
        special_tokens=[*SPECIAL_TOKENS, *continuing],
        continuing_subword_prefix=CONTINUATION,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # repeat each word by its count: the trainer takes text, not counts
    tokenizer.train_from_iterator((f"{word} " * known[word] for word in sorted(known)), trainer)
    ids = tokenizer.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    # Room left, because no pair occurs often enough: rather rarer characters than nothing.
    if not most and len(pieces) < size:
        rest = sorted(
            counts.keys() - set(pieces), key=lambda character: (-counts[character], character)
        )
        inner = {character for word in words for character in word[1:]}
        for character in rest:
            added = [character, *[f"{CONTINUATION}{character}"] * (character in inner)]
            if len(pieces) + len(added) > size:
                break
            pieces += added
    return pieces


def _read(path: str) -> pa.Table:
    with pa.memory_map(path) as file:
        return pa.ipc.open_file(file).read_all()


if __name__ == "__main__":
    run_program(make_vocabulary)
