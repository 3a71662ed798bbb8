"""The Hugging Face route: datasets.map with a fast tokenizer, packing, and the masking collator.

    python huggingface.py WORKERS CORPUS VOCABULARY OUTPUT MAX_SEQ_LENGTH

As in its examples (run_mlm.py): every text is tokenised, the texts are concatenated and cut into
blocks of equal length, and the collator masks tokens at random. There are no sentence pairs.
"""

import json
import os
import sys
import time
from collections.abc import Iterator

from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import BatchEncoding, BertTokenizerFast, DataCollatorForLanguageModeling

workers, corpus, vocabulary, output, max_seq_length = sys.argv[1:]
processes = int(workers) if int(workers) > 1 else None
length = int(max_seq_length)
tokenizer = BertTokenizerFast(vocab_file=vocabulary, vocab=vocabulary)
# Texts may be of any length; they are cut into blocks later.
tokenizer.model_max_length = 1 << 30


def read() -> Iterator[dict[str, str]]:
    """The documents, one text each."""
    with open(corpus, encoding="utf-8") as file:
        for document in file.read().split("\n\n"):
            if document.strip():
                yield {"text": document.replace("\n", " ")}


def tokenise(batch: dict[str, list[str]]) -> BatchEncoding:
    """Token ids of each text, with special tokens."""
    encoded: BatchEncoding = tokenizer(batch["text"], return_special_tokens_mask=True)
    return encoded


def group(batch: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Concatenate the texts of a batch and cut them into blocks of equal length."""
    joined = {name: [i for row in rows for i in row] for name, rows in batch.items()}
    # The rest of each batch is dropped, as in run_mlm.py.
    end = len(joined["input_ids"]) // length * length
    return {
        name: [values[start : start + length] for start in range(0, end, length)]
        for name, values in joined.items()
    }


source = Dataset.from_list(list(read()))
started, aside = time.monotonic(), sum(os.times()[:4])
tokens = source.map(tokenise, batched=True, remove_columns=["text"], num_proc=processes)
tokenised = time.monotonic()
blocks = tokens.map(group, batched=True, num_proc=processes)
blocks.save_to_disk(output)
grouped = time.monotonic()
collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
batches = DataLoader(blocks, batch_size=256, collate_fn=collator, num_workers=processes or 0)
examples = sum(len(batch["input_ids"]) for batch in batches)
collated = time.monotonic()
found = {
    "seconds": collated - started,
    "seconds_without_collator": grouped - started,
    "seconds_tokenising": tokenised - started,
    "examples": examples,
    "cpu_aside": aside,
}
print(json.dumps(found))
