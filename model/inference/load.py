"""A trained encoder, ready to use.

In:  a directory: an artifact of Cloze or a model in Hugging Face's layout.
Out: `Model`, which fills masks and embeds texts.

    model = load("runs/demo/encoder")
    model.fill_mask("numpy.zeros returns a new [MASK] of given shape", top_k=3)
    model.embed(["first text", "second text"]).shape      # (2, hidden size)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.arguments import checked
from cloze.artifacts.tokenizer import MASK, SubwordTokenizer, well_formed
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.encoder.models import Encoder, Pooling, PretrainingModel, shapes_alone
from cloze.model.encoder.operations.attention import Attention
from cloze.model.encoder.precision import Precision, placed
from cloze.model.hugging_face.model_files import EncoderFiles, read_encoder_files
from cloze.model.hugging_face.sentence_modules import (
    MODULES,
    SentenceModules,
)
from cloze.model.hugging_face.source import open_source
from cloze.model.inference.unread import Unread, unread_texts
from cloze.model.tasks.features import around_masks, batches_by_length, tokens_at_once

WINDOW = 2048
"""Number of texts tokenised and sorted at once."""

WINDOW_CHARACTERS = 1 << 23
"""Characters after which a window ends earlier: its tokens take some hundred megabytes."""

ResultT = TypeVar("ResultT")

# N texts of a window, D width of a vector


class Window(NamedTuple):
    """Consecutive texts of a stream: `WINDOW` of them, fewer if they are long, or the last."""

    first: int
    """The number of texts before them."""
    texts: Sequence[str]


class EmbedOptions(NamedTuple):
    """How vectors are computed: arguments of `Model.embed`."""

    pooling: Pooling | None
    layers: tuple[int, ...] | None
    truncate: bool
    prompt: str | None


class WindowVectors(NamedTuple):
    """The vectors of a window."""

    vectors: Sequence[npt.NDArray[np.float32]]
    """N of [D]."""
    unread: Unread
    """What was not read of the texts."""


@dataclass(frozen=True)
class Fill:
    """One candidate for a [MASK]."""

    token: str
    """The word-piece or byte-level token; `##` marks the continuation of a word."""

    token_id: int
    """Its id."""

    probability: float
    """The probability that the model gives it."""


@dataclass(frozen=True)
class Model:
    """A trained encoder on its device. Methods take texts and compute no gradients.

    Threads may share a model: nothing of it changes in use. A wrong argument is a `UsageError`.
    """

    module: PretrainingModel
    tokenizer: SubwordTokenizer
    has_heads: bool
    """Whether it can fill masks."""

    has_pooler: bool
    """Whether `pooling="pooler"` is possible."""

    modules: SentenceModules | None = None
    """How sentence-transformers computes vectors with it, if it came with such modules."""

    deal: Callable[[Iterator[Window], EmbedOptions], Iterator[WindowVectors]] | None = None
    """Computes the windows of a stream in its place (ranks.py), in their order."""

    @property
    def config(self) -> EncoderConfig:
        """Configuration of the encoder."""
        return self.module.encoder.config

    @checked
    def fill_mask(self, text: str, *, top_k: int = 5) -> list[list[Fill]]:
        """The `top_k` most probable tokens for each [MASK] of `text`, in order, best first."""
        return next(self.fill_masks([text], top_k=top_k))

    @checked
    def fill_masks(self, texts: Iterable[str], *, top_k: int = 5) -> Iterator[list[list[Fill]]]:
        """`fill_mask` for a stream of texts, in order, computed in length-grouped batches."""
        if not self.has_heads:
            raise UsageError(
                "this encoder was not pre-trained as a masked language model, or came without "
                "that head, so it cannot fill masks; load one that was"
            )
        tokenizer = self.tokenizer
        if not 1 <= top_k <= tokenizer.size:
            raise UsageError(f"top_k {top_k}: expected 1 to {tokenizer.size}, the vocabulary")
        device = next(self.module.parameters()).device

        @torch.inference_mode()
        def compute(examples: Sequence[Example]) -> list[list[list[Fill]]]:
            batch = pack_sequences(examples).to(device)
            states = self.module.encoder(batch)
            # Only the rows of the masked tokens are multiplied by the word embeddings: M of T, and
            # the vocabulary is the widest side of any product here.
            logits_MV = self.module.masked_lm_logits(states, batch.masked_lm_positions)
            best = logits_MV.float().softmax(-1).topk(top_k, dim=-1)
            # One copy to the host, for the check and for the answer.
            found_MK = require_finite(best.values.cpu().numpy(), "the probability of a token")
            # [MASK]s of all texts, in order, dealt back to their texts below.
            fills = iter(
                [
                    Fill(tokenizer.vocabulary[token_id], token_id, probability)
                    for token_id, probability in zip(*of_mask, strict=True)
                ]
                for of_mask in zip(best.indices.tolist(), found_MK.tolist(), strict=True)
            )
            return [[next(fills) for _ in example.masked_lm_positions] for example in examples]

        return (
            fills
            for window in _windows(texts)
            for fills in _by_length(self._masked_examples(window), compute, device=device)
        )

    @checked
    def embed(
        self,
        texts: str | Iterable[str],
        *,
        pooling: Pooling | None = None,
        layers: tuple[int, ...] | None = None,
        truncate: bool = False,
        normalize: bool = False,
        prompt: str | None = None,
    ) -> npt.NDArray[np.float32]:
        """One vector per text, [N, D]; for a single string [1, D].

        Unless `pooling` or `layers` are given, vectors are those of sentence-transformers' `encode`
        if the model has modules for it (`modules.json`), with the prompt called `prompt` or the
        model's default one; longer texts are truncated to the modules' limit, and counted. Without
        modules, a vector is the mean over all tokens of a text.

        `pooling`: `mean` over all tokens, `cls` the first one, `pooler` the trained dense layer on
        that token. `layers`: hidden states to concatenate; 0 is the embeddings, -1 the last layer,
        (-4, -3, -2, -1) the paper's best features (Table 7). Texts longer than the position table
        are refused unless `truncate`. `normalize` scales vectors to length 1.
        """
        listed = [texts] if isinstance(texts, str) else list(texts)
        stream = self.embed_stream(
            listed,
            pooling=pooling,
            layers=layers,
            truncate=truncate,
            normalize=normalize,
            prompt=prompt,
        )
        width = self.vector_width(pooling=pooling, layers=layers)
        return np.array(list(stream), np.float32).reshape(len(listed), width)

    @checked
    def vector_width(
        self, *, pooling: Pooling | None = None, layers: tuple[int, ...] | None = None
    ) -> int:
        """Width of the vectors of `embed`."""
        if self.modules is not None and pooling is None and layers is None:
            return self.modules.width(self.config.hidden_size)
        return self.config.hidden_size * len(layers or (-1,))

    @checked
    def embed_stream(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        layers: tuple[int, ...] | None = None,
        truncate: bool = False,
        normalize: bool = False,
        prompt: str | None = None,
        say: Callable[[str], object] = say,
    ) -> Iterator[npt.NDArray[np.float32]]:
        """`embed` for a stream of texts: vectors [D] in the texts' order.

        `say`: what is told how many texts were truncated, or are unknown words.
        """
        options = EmbedOptions(pooling, layers, truncate, prompt)
        self._check(options)
        windows = _windows(texts)
        # A generator: windows are tokenised and computed only as fast as the caller takes vectors,
        # so a stream may be longer than memory.
        computed = (
            self.deal(windows, options)
            if self.deal
            else (window_vectors(self, window, options) for window in windows)
        )
        vectors = map(_finite_vector, self._in_order(computed, options, say), count(1))
        if not normalize:
            return vectors
        # A zero vector stays zero.
        return (vector / max(np.linalg.norm(vector), np.float32(1e-12)) for vector in vectors)

    @checked
    def sentence_vectors(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        say: Callable[[str], object] = say,
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Vectors of length 1, [D], to compare texts by their cosines.

        `prompt`: QUERY or DOCUMENT for those of sentence-transformers' `encode_query` and
        `encode_document`. Texts are truncated to the limit of the modules, or to the positions;
        `say` is told how many were.
        """
        named = None if self.modules is None else prompt
        return self.embed_stream(texts, truncate=True, normalize=True, prompt=named, say=say)

    def _check(self, options: EmbedOptions) -> None:
        """Refuse options that this encoder does not have."""
        if options.pooling == "pooler" and not self.has_pooler:
            raise UsageError("this encoder has no pooler; use pooling='cls' or 'mean'")
        depth = self.config.num_hidden_layers + 1
        chosen = (-1,) if options.layers is None else options.layers
        if not chosen or not all(-depth <= layer < depth for layer in chosen):
            raise UsageError(
                f"layers {options.layers}: expected numbers from {-depth} to {depth - 1}"
            )
        if options.prompt is not None and self._modules_for(options) is None:
            raise UsageError(
                f"prompt {options.prompt!r}: only the vectors of a model's own modules.json have "
                "prompts"
            )

    def _modules_for(self, options: EmbedOptions) -> SentenceModules | None:
        """The model's own modules, unless the caller chooses."""
        return self.modules if options.pooling is None and options.layers is None else None

    def _longest(self, options: EmbedOptions) -> int:
        """Tokens of the longest text that is not truncated."""
        modules = self._modules_for(options)
        return modules.max_seq_length if modules else self.config.max_position_embeddings

    def _read(self, window: Window, options: EmbedOptions) -> tuple[list[Example], Unread]:
        """[CLS] text [SEP] of each text, and what of them is not read."""
        tokenizer, modules, longest = (
            self.tokenizer,
            self._modules_for(options),
            self._longest(options),
        )
        before = modules.prompt(options.prompt) if modules else ""
        texts = [well_formed(text) for text in window.texts]
        if modules is not None:
            texts = [modules.text(text, before) for text in texts]
        # [CLS] and [SEP] are added below, because a text is truncated before them.
        ids = tokenizer.encode_all(texts)
        unread = unread_texts(ids, unk_id=tokenizer.unk_id)
        for number, text in enumerate(ids, start=window.first + 1):
            if len(text) + 2 <= longest:
                continue
            # Models with modules have a limit of their own, at which sentence-transformers
            # truncates, too.
            if modules is None and not options.truncate:
                raise UsageError(
                    f"text {number}: {len(text) + 2} tokens, the encoder has {longest} "
                    "positions; cut it into parts, or allow truncation"
                )
            unread.truncated += 1
        examples = [
            Example([tokenizer.cls_id, *text[: longest - 2], tokenizer.sep_id]) for text in ids
        ]
        return examples, unread

    def _in_order(
        self,
        windows: Iterable[WindowVectors],
        options: EmbedOptions,
        say: Callable[[str], object],
    ) -> Iterator[npt.NDArray[np.float32]]:
        """The vectors of all windows; says what was not read of the texts."""
        unread = Unread()
        for window in windows:
            unread.add(window.unread)
            yield from window.vectors
        unread.report(say, longest=self._longest(options))

    def _masked_examples(self, window: Window) -> list[Example]:
        """[CLS] text [SEP] with its [MASK]s as positions to predict.

        Elsewhere `[MASK]` in a text is ordinary text; here it is the special token.
        """
        positions = self.config.max_position_embeddings
        examples = []
        for number, text in enumerate(window.texts, start=window.first + 1):
            ids, places = around_masks(self.tokenizer, well_formed(text))
            if not places:
                raise UsageError(
                    f"text {number}: no {MASK} in {text!r}; write one in place of a word"
                )
            if len(ids) > positions:
                raise UsageError(
                    f"text {number}: {len(ids)} tokens, the encoder has {positions} positions; "
                    "shorten the text"
                )
            examples.append(
                # Only the positions are read; the words are unknown.
                Example(ids, masked_lm_positions=places, masked_lm_ids=[0] * len(places))
            )
        return examples


def window_vectors(
    model: Model,
    window: Window,
    options: EmbedOptions,
    *,
    after_batch: Callable[[], object] = lambda: None,
) -> WindowVectors:
    """The vectors of [CLS] text [SEP]; `after_batch` is called after each of its batches."""
    encoder, modules = model.module.encoder, model._modules_for(options)
    layers = (-1,) if options.layers is None else options.layers
    device = next(encoder.parameters()).device

    @torch.inference_mode()
    def compute(examples: Sequence[Example]) -> list[npt.NDArray[np.float32]]:
        batch = pack_sequences(examples).to(device)
        # Memory for those of all layers only where another than the last is asked for.
        last_alone = modules is not None or layers == (-1,)
        states = [encoder(batch)] if last_alone else encoder.hidden_states(batch)
        if modules is not None:
            found = modules.vectors(states[-1], batch)
        else:
            how = options.pooling or "mean"
            pooled = [encoder.pooled(states[layer], batch, pooling=how) for layer in layers]
            found = torch.cat(pooled, dim=-1).float()
        rows = list(found.cpu().numpy())
        after_batch()
        return rows

    examples, unread = model._read(window, options)
    return WindowVectors([*_by_length(examples, compute, device=device)], unread)


def require_finite(found: npt.NDArray[np.float32], what: str) -> npt.NDArray[np.float32]:
    """What a model has computed, if all of it is numbers; `what` names it in the error."""
    if not np.isfinite(found).all():
        raise ClozeError(
            f"{what} has NaN or infinite values, since the model's weights are too large for this "
            "precision; try precision='fp32', or use another checkpoint"
        )
    return found


def _finite_vector(vector: npt.NDArray[np.float32], number: int) -> npt.NDArray[np.float32]:
    return require_finite(vector, f"text {number}: its vector")


@checked
def load_model(
    location: str | Path,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    attention: Attention = "auto",
) -> Model:
    """The trained encoder at `location`, on CUDA if `device` is auto and there is a GPU.

    `device` is otherwise what torch calls it, "cpu" or "cuda:1"; a device that is not there is
    refused. `attention`: see `Encoder`.

    From a finetune artifact, the encoder that was trained to compare texts.
    """
    files = read_sentence_encoder(location, for_inference=True)
    return model_of(files, device=device, precision=precision, attention=attention)


def read_sentence_encoder(location: str | Path, *, for_inference: bool = False) -> EncoderFiles:
    """The files of the encoder that `load_model` loads; options as for `read_encoder_files`."""
    source = open_source(location)
    # A trial's model to compare texts, if the artifact has exactly one.
    if source.manifest is not None and source.manifest.stage == "finetune":
        found = [name for name in source.names if name.endswith(f"/{MODULES}")]
        if len(found) != 1:
            raise UsageError(
                f"{source.directory}: contains {len(found)} encoders trained to compare texts, "
                "expected one; write the right one into a folder with `cloze export`"
            )
        source = source.inside(found[0].removesuffix(MODULES))
    return read_encoder_files(source, for_inference=for_inference)


def model_of(
    files: EncoderFiles,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    attention: Attention = "auto",
) -> Model:
    """The encoder in memory, on its device; options as for `load_model`."""
    with shapes_alone():
        module = PretrainingModel(Encoder(files.config, files.tokenizer.size, attention=attention))
    # Parts that are missing stay zero: what needs them is refused.
    missing = {
        name: torch.zeros(parameter.shape)
        for name, parameter in module.named_parameters()
        if name not in files.parameters
    }
    # `assign` puts the tensors that were read in the place of parameters which have only shapes so
    # far: no second copy of the weights, and no time for an initialisation that they would
    # overwrite.
    module.load_state_dict({**missing, **files.parameters}, assign=True)
    where, chosen = placed(device, precision)
    module.to(device=where, dtype=torch.bfloat16 if chosen == "bf16" else torch.float32).eval()
    pack_encoder(module.encoder, chosen)
    return Model(module, files.tokenizer, files.fills_masks, files.has_pooler, files.modules)


def pack_encoder(encoder: Encoder, precision: str) -> None:
    """Pack the encoder for inference, with int8 products if these are its precision."""
    if not encoder.pack(int8=precision == "int8") and precision == "int8":
        raise UsageError(
            "precision int8: there are kernels for the layers of BERT on a CPU, with widths that "
            "are multiples of 32, where gcc is installed; use fp32"
        )


def _windows(texts: Iterable[str]) -> Iterator[Window]:
    window: list[str] = []
    first, characters = 0, 0
    for text in texts:
        window.append(text)
        characters += len(text)
        if len(window) == WINDOW or characters >= WINDOW_CHARACTERS:
            yield Window(first, window)
            first += len(window)
            window, characters = [], 0
    if window:
        yield Window(first, window)


def _by_length(
    examples: Sequence[Example],
    compute: Callable[[Sequence[Example]], Sequence[ResultT]],
    *,
    device: torch.device,
) -> Iterator[ResultT]:
    """One result per example, in order, computed on `device` in length-grouped batches.

    Grouping within a window is enough for even batches and keeps memory use constant.
    """
    results: dict[int, ResultT] = {}
    lengths = np.array([len(example.input_ids) for example in examples])
    for rows in batches_by_length(lengths, token_budget=tokens_at_once(device)):
        computed = compute([examples[row] for row in rows])
        # Batches come in the order of lengths. The results of a window wait until all are there,
        # since the first text may be in the last batch.
        results.update(zip(rows.tolist(), computed, strict=True))
    return (results[number] for number in range(len(examples)))
