"""The encoder that fine-tuning starts from and evaluation measures.

In:  an encoder artifact, or a folder in Hugging Face's layout.
Out: `InitialEncoder`, which makes fresh models: pre-trained, or random in the same shape.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from artifacts.tokenizer import SubwordTokenizer
from model.config import EncoderConfig, Objective
from model.encoder.encoder import Encoder, initialise_parameter
from model.encoder.pretraining import PretrainingModel
from model.finetune.vocabulary_pruning import WORD_EMBEDDINGS
from model.hugging_face.encoder_files import read_encoder_files
from model.hugging_face.sentence_modules import SentenceModules
from model.tasks.features import Places

ENCODER_PREFIX = "encoder."


@dataclass(frozen=True)
class InitialEncoder:
    """The weights and tokenizer that every trial starts from."""

    config: EncoderConfig
    tokenizer: SubwordTokenizer
    parameters: dict[str, Tensor]
    """By our names; pooler and heads may be missing."""

    objective: Objective = "masked_lm"
    """What it was pre-trained to predict."""

    modules: SentenceModules | None = None
    """How sentence-transformers makes vectors with it, if it came from there."""

    licence: str = ""
    """The licence lines of its model card."""

    @property
    def pooling(self) -> Literal["mean", "cls"]:
        """How a sequence is pooled: as it was trained to be, else the mean."""
        return self.modules.pooling if self.modules else "mean"

    @property
    def word_embeddings(self) -> Tensor:
        """Word embeddings of the whole vocabulary, [V, H]."""
        return self.parameters[ENCODER_PREFIX + WORD_EMBEDDINGS]

    @property
    def parameter_count(self) -> int:
        """Parameters of the encoder with both pre-training heads."""
        with torch.device("meta"):
            model = PretrainingModel(self.config, self.tokenizer.size)
        return sum(parameter.numel() for parameter in model.parameters())

    @property
    def fills_masks(self) -> bool:
        """Whether it was trained as a masked language model and came with that head."""
        return "masked_lm.output_bias" in self.parameters and self.objective == "masked_lm"

    def reaching(self, positions: int) -> "InitialEncoder":
        """The same for at least `positions` tokens, unless it has a position table."""
        if self.config.has_position_table or self.config.max_position_embeddings >= positions:
            return self
        longer = self.config.model_copy(update={"max_position_embeddings": positions})
        return replace(self, config=longer)

    def pretraining_model(self, *, pretrained: bool, seed: int) -> PretrainingModel:
        """The encoder with both pre-training heads, in fp32; missing weights are initialised."""
        with torch.device("meta"):
            model = PretrainingModel(self.config, self.tokenizer.size)
        self._fill(model, pretrained=pretrained, seed=seed)
        return model

    def encoder(self, *, pretrained: bool, seed: int, used_ids: Places | None = None) -> Encoder:
        """The encoder alone, in fp32, its word embeddings those of `used_ids` only, if given.

        Random weights, and a missing pooler, are initialised from `seed`.
        """
        size = self.tokenizer.size if used_ids is None else len(used_ids)
        with torch.device("meta"):
            encoder = Encoder(self.config, size)
        self._fill(
            encoder, pretrained=pretrained, seed=seed, prefix=ENCODER_PREFIX, used_ids=used_ids
        )
        return encoder

    def _fill(
        self,
        module: nn.Module,
        *,
        pretrained: bool,
        seed: int,
        prefix: str = "",
        used_ids: Places | None = None,
    ) -> None:
        """Materialise a module on the meta device: every parameter gets its value."""
        torch.manual_seed(seed)
        values = {}
        for name, parameter in sorted(module.named_parameters()):
            if pretrained and prefix + name in self.parameters:
                whole = self.parameters[prefix + name]
                cut = used_ids is not None and name == WORD_EMBEDDINGS
                values[name] = whole[torch.from_numpy(used_ids)] if cut else whole.clone()
            else:
                values[name] = torch.empty(parameter.shape)
                initialise_parameter(prefix + name, values[name], self.config)
        module.load_state_dict(values, assign=True)


def read_initial_encoder(location: str | Path) -> InitialEncoder:
    """The encoder at `location`."""
    files = read_encoder_files(location)
    return InitialEncoder(
        config=files.config,
        tokenizer=files.tokenizer,
        parameters=files.parameters(),
        objective=files.objective,
        modules=files.modules,
        licence=files.licence,
    )
