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
    """What every trial starts from."""

    config: EncoderConfig
    tokenizer: SubwordTokenizer
    parameters: dict[str, Tensor]
    """By our names; pooler and heads may be missing."""

    objective: Objective = "masked_lm"
    """What it was pre-trained to predict."""

    modules: SentenceModules | None = None
    """How sentence-transformers makes vectors with it, if it came from there."""

    licence: str = ""
    """The lines of its card that say under which licence it is."""

    @property
    def pooling(self) -> Literal["mean", "cls"]:
        """How one vector is made of a sequence's: as it was trained to, else the mean."""
        return self.modules.pooling if self.modules else "mean"

    @property
    def word_embeddings(self) -> Tensor:
        """Those of the whole vocabulary, [V, H]."""
        return self.parameters[ENCODER_PREFIX + WORD_EMBEDDINGS]

    @property
    def parameter_count(self) -> int:
        """Of the encoder with both pre-training heads."""
        with torch.device("meta"):
            model = PretrainingModel(self.config, self.tokenizer.size)
        return sum(parameter.numel() for parameter in model.parameters())

    @property
    def fills_masks(self) -> bool:
        """Whether it came with the head of a masked language model, and was trained as one."""
        return "masked_lm.output_bias" in self.parameters and self.objective == "masked_lm"

    def reaching(self, positions: int) -> "InitialEncoder":
        """The same for sequences of `positions` tokens at least, unless it has a table of them."""
        if self.config.has_position_table or self.config.max_position_embeddings >= positions:
            return self
        longer = self.config.model_copy(update={"max_position_embeddings": positions})
        return replace(self, config=longer)

    def pretraining_model(self, *, pretrained: bool, seed: int) -> PretrainingModel:
        """The encoder with both pre-training heads, in fp32; what is missing is drawn."""
        with torch.device("meta"):
            model = PretrainingModel(self.config, self.tokenizer.size)
        self._fill(model, pretrained=pretrained, seed=seed)
        return model

    def encoder(self, *, pretrained: bool, seed: int, used_ids: Places | None = None) -> Encoder:
        """The encoder alone, in fp32, its word embeddings those of `used_ids` only, if given.

        Random weights, and a pooler where there is none, are drawn from `seed`.
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
        """Give every parameter of a module without storage its value."""
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
