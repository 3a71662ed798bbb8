"""Pre-training with the Hugging Face Trainer, at its best: the other side of the race.

    python huggingface_trainer.py SETTINGS.json

In:  the settings that race.py writes.
Out: one JSON line `{"points": [[step, seconds of training, held-out MLM loss], …]}`.

At its best means bf16 autocast, SDPA, fused AdamW, batches padded to their own longest sequence
only, and a worker process that collates them. Batches, their order, architecture, initial weights,
optimizer, schedule and clipping are the same as ours; the held-out loss is the same sum and is not
timed. Only dropout and rounding differ.
"""

import json
import sys
import time
from pathlib import Path
from typing import cast

import torch
import transformers
from torch.utils.data import Dataset
from transformers import TrainerControl, TrainerState, TrainingArguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.training.transformers_steps import hugging_face_model, padded_inputs
from cloze.artifacts.store import open_artifact
from cloze.model.config import PretrainStage
from cloze.model.data.micro_batches import BatchSource, Share
from cloze.model.data.sources import heldout_sources, suited_tokenizer, training_source
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.hugging_face.layout import to_hugging_face
from cloze.model.training.optimizer import Schedule, parameter_groups

settings = json.loads(Path(sys.argv[1]).read_text())
stage = PretrainStage.model_validate(settings["config"])
recipe, length = stage.pretrain, stage.pretrain.phases[0].max_seq_length
examples = open_artifact(settings["examples"])
tokenizer = suited_tokenizer(examples, stage)
WHOLE = Share(rank=0, ranks=1, token_budget=1 << 40)
"""A whole batch at once."""

torch.set_num_threads(settings["threads"])


class Batches(Dataset[dict[str, torch.Tensor]]):
    """The batches of a source, already collated: padded to their longest example."""

    def __init__(self, source: BatchSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return self.source.curriculum.steps

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        (packed,) = self.source(step).micro_batches
        return padded_inputs(packed, width=packed.max_seqlen)


class HeldOut(transformers.TrainerCallback):
    """Computes the held-out loss every few steps, with the clock stopped."""

    def __init__(self) -> None:
        source = Batches(heldout_sources(examples, tokenizer, stage, share=WHOLE)[length])
        self.batches = [source[i] for i in range(len(source))]
        self.points: list[tuple[int, float, float]] = []
        self.spent, self.since = 0.0, 0.0

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **_: object,
    ) -> None:
        """Start the clock."""
        self.since = self.since or time.monotonic()

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **more: object,
    ) -> None:
        """Stop the clock for an evaluation, if one is due."""
        if state.global_step % recipe.evaluate_every and state.global_step != recipe.steps:
            return
        self.spent += time.monotonic() - self.since
        model = cast("transformers.BertForPreTraining", more["model"])
        self.points.append((state.global_step, self.spent, self.loss(model)))
        self.since = time.monotonic()

    @torch.no_grad()
    def loss(self, model: transformers.BertForPreTraining) -> float:
        """Mean cross-entropy of the masked tokens."""
        model.eval()
        total, count = 0.0, 0
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16"):
            for batch in self.batches:
                # Without labels, the model computes no loss of its own.
                unlabelled = {k: v for k, v in batch.items() if "label" not in k}
                masked = batch["labels"] != -100
                logits = model(**unlabelled).prediction_logits[masked].float()
                labels = batch["labels"][masked]
                total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
                count += len(labels)
        model.train()
        return total / count


def initial_model(vocabulary_size: int) -> transformers.BertForPreTraining:
    """Hugging Face's model with our side's initial weights."""
    torch.manual_seed(stage.seed)
    ours = PretrainingModel(Encoder(stage.encoder, vocabulary_size))
    found = hugging_face_model(stage.encoder, vocabulary_size=vocabulary_size)
    model = cast("transformers.BertForPreTraining", found)
    # Tied weights are missing here; `tie_weights` sets them.
    loaded = model.load_state_dict(to_hugging_face(ours.state_dict()), strict=False)
    assert not loaded.unexpected_keys
    model.tie_weights()
    return model


model = initial_model(tokenizer.size)
optimizer = torch.optim.AdamW(  # with our parameter groups and settings
    parameter_groups(model.named_parameters(), weight_decay=recipe.optimizer.weight_decay),
    lr=recipe.optimizer.learning_rate,
    betas=(recipe.optimizer.beta1, recipe.optimizer.beta2),
    eps=recipe.optimizer.eps,
    fused=True,
)
rate = Schedule(recipe.optimizer, recipe.steps)
# `LambdaLR` expects a factor of the initial rate.
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: rate(step) / recipe.optimizer.learning_rate
)
watch = HeldOut()
transformers.Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=settings["scratch"],
        use_cpu=True,
        bf16=recipe.precision == "bf16",
        max_steps=recipe.steps,
        per_device_train_batch_size=1,  # one item is one whole batch
        max_grad_norm=recipe.optimizer.max_grad_norm,
        dataloader_num_workers=1,
        train_sampling_strategy="sequential",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        torch_compile=settings["compile"],
        disable_tqdm=True,
    ),
    train_dataset=Batches(training_source(examples, tokenizer, stage, share=WHOLE)),
    data_collator=lambda items: items[0],
    optimizers=(optimizer, schedule),
    callbacks=[watch],
).train()
print(json.dumps({"points": watch.points}))
