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

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForPreTraining,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from artifacts.store import open_artifact
from model.config import OptimizerConfig, PretrainStage
from model.data.order import LengthOrder
from model.data.shards import Examples, ExampleShards
from model.encoder.models import PretrainingModel
from model.hugging_face.layout import hugging_face_config, to_hugging_face
from model.training.optimizer import learning_rate, parameter_groups

settings = json.loads(Path(sys.argv[1]).read_text())
stage = PretrainStage.model_validate(settings["config"])
recipe, length = stage.pretrain, stage.pretrain.phases[0].max_seq_length
artifact = open_artifact(settings["examples"])
torch.set_num_threads(settings["threads"])


class Batches(Dataset[dict[str, torch.Tensor]]):
    """The run's global batches, already collated."""

    def __init__(self, split: str, purpose: str, batch_size: int, count: int) -> None:
        self.shards = ExampleShards(artifact, split=split, max_seq_length=length)
        self.order = LengthOrder(length, self.shards.rows, batch_size, purpose)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        batch = self.order.batch(step)
        order = self.order.epoch(batch.epoch)
        shards, rows = order.locate(batch.first, batch.stop)
        return collated(self.shards.gather(batch.epoch % self.order.copies, shards, rows))


def collated(examples: Examples) -> dict[str, torch.Tensor]:
    """Pad to the longest example; labels are -100 where no token is masked."""
    inside = np.arange(examples.lengths.max()) < examples.lengths[:, None]
    ids = np.zeros(inside.shape, np.int64)
    ids[inside] = examples.input_ids
    labels = np.full(inside.shape, -100)
    rows = np.repeat(np.arange(len(examples)), examples.masked_counts)
    labels[rows, examples.masked_lm_positions] = examples.masked_lm_ids
    types = inside & (np.arange(inside.shape[1]) >= examples.segment_a_lengths[:, None])
    arrays = {
        "input_ids": ids,
        "attention_mask": inside.astype(np.int64),
        "token_type_ids": types.astype(np.int64),
        "labels": labels,
        "next_sentence_label": examples.next_sentence_labels,
    }
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


class HeldOut(TrainerCallback):
    """Computes the held-out loss every few steps, with the clock stopped."""

    def __init__(self) -> None:
        wanted = recipe.evaluation_examples
        source = Batches("heldout", "evaluation", min(256, wanted), max(1, wanted // 256))
        self.batches = [source[i] for i in range(len(source))]
        self.points: list[tuple[int, float, float]] = []
        self.spent, self.since = 0.0, 0.0

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Start the clock."""
        self.since = self.since or time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: object
    ) -> None:
        """Stop the clock for an evaluation, if one is due."""
        if state.global_step % recipe.evaluate_every and state.global_step != recipe.steps:
            return
        self.spent += time.monotonic() - self.since
        model = cast("BertForPreTraining", more["model"])
        self.points.append((state.global_step, self.spent, self.loss(model)))
        self.since = time.monotonic()

    @torch.no_grad()
    def loss(self, model: BertForPreTraining) -> float:
        """Mean cross-entropy of the masked tokens."""
        model.eval()
        total, count = 0.0, 0
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.precision == "bf16"):
            for batch in self.batches:
                inputs = {k: v for k, v in batch.items() if "label" not in k}
                masked = batch["labels"] != -100
                logits = model(**inputs).prediction_logits[masked].float()
                labels = batch["labels"][masked]
                total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
                count += len(labels)
        model.train()
        return total / count


def adamw(config: OptimizerConfig, model: BertForPreTraining) -> torch.optim.Optimizer:
    """Torch's fused AdamW with our parameter groups and settings."""
    return torch.optim.AdamW(
        parameter_groups(model.named_parameters(), weight_decay=config.weight_decay),
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def initial_model(vocabulary_size: int) -> BertForPreTraining:
    """Hugging Face's model with our side's initial weights."""
    torch.manual_seed(stage.seed)
    ours = PretrainingModel(stage.encoder, vocabulary_size)
    shape = hugging_face_config(stage.encoder, vocabulary_size)
    model = BertForPreTraining(BertConfig(**{k: v for k, v in shape.items() if k != "cloze"}))
    loaded = model.load_state_dict(to_hugging_face(ours.state_dict()), strict=False)
    assert not loaded.unexpected_keys
    model.tie_weights()
    return model


model = initial_model(artifact.manifest.statistics["vocabulary_size"])
optimizer = adamw(recipe.optimizer, model)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer,
    lambda step: (
        learning_rate(step, steps=recipe.steps, optimizer=recipe.optimizer)
        / recipe.optimizer.learning_rate
    ),
)
watch = HeldOut()
Trainer(
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
    train_dataset=Batches(
        "train", f"{artifact.digest}/{stage.seed}", recipe.batch_size, recipe.steps
    ),
    data_collator=lambda items: items[0],
    optimizers=(optimizer, schedule),
    callbacks=[watch],
).train()
print(json.dumps({"points": watch.points}))
