"""BERT's special tokens, by name and in the order a new vocabulary gives them."""

PAD = "[PAD]"
UNK = "[UNK]"
CLS = "[CLS]"
SEP = "[SEP]"
MASK = "[MASK]"

SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)

CONTINUATION = "##"
"""Prefix of a word-piece that goes on with a word."""
