"""Shapes of encoders that are small enough for a test."""

from typing import Any

from cloze.model.config import EncoderConfig


def small_shape(
    *, layers: int, width: int, heads: int, positions: int, **more: Any
) -> EncoderConfig:
    """An encoder whose feed-forward layers are twice as wide as its states."""
    return EncoderConfig(
        preset=None,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=2 * width,
        max_position_embeddings=positions,
        **more,
    )
