"""How large an encoder is and how much one step of its training takes.

In:  its shape and the size of its vocabulary.
Out: numbers of parameters, FLOPs and bytes. No framework is imported; tests compare the figures
     with the real model, with the trainer's own count of FLOPs and with DeepSpeed's estimates.
"""

from model.config import EncoderConfig

MASTER_BYTES = 4 + 4 + 4
"""A weight in fp32 and its two moments: what ZeRO 1 slices first, and what a checkpoint holds."""

ROUNDED_BYTES = 2
"""The weight as it is multiplied, in bf16."""

GRADIENT_BYTES = 2 + 4
"""Its gradient in bf16, and the sum of gradients in fp32."""

ACTIVATION_BYTES = 34
"""Per token, layer and unit of width, if attention is not kept (Korthikanti et al. 2022, 4.1)."""

LOGIT_BYTES = 2 + 4
"""A word-piece's score at a masked place, and its probability."""


def parameters(encoder: EncoderConfig, vocabulary_size: int) -> int:
    """Weights of the encoder with both pre-training heads; the decoder is the word embeddings."""
    width = encoder.hidden_size
    rows = vocabulary_size + encoder.max_position_embeddings + encoder.type_vocab_size
    embeddings = rows * width + 2 * width
    pooler = width**2 + width
    masked_lm = width**2 + width + 2 * width + vocabulary_size
    next_sentence = 2 * width + 2
    layers = encoder.num_hidden_layers * layer_parameters(encoder)
    return embeddings + layers + pooler + masked_lm + next_sentence


def layer_parameters(encoder: EncoderConfig) -> int:
    """Weights of one layer: four projections, two dense layers, two layer norms."""
    width, inner = encoder.hidden_size, encoder.intermediate_size
    attention = 4 * (width**2 + width)
    feed_forward = 2 * width * inner + inner + width
    return attention + feed_forward + 2 * 2 * width


def example_flops(
    encoder: EncoderConfig, vocabulary_size: int, *, tokens: float, masked: float
) -> float:
    """FLOPs of one example, forward and backward, of the matrix products alone."""
    width, inner = encoder.hidden_size, encoder.intermediate_size
    layers = encoder.num_hidden_layers
    weights = layers * (4 * width**2 + 2 * width * inner)
    head = width * vocabulary_size + width**2
    return 6.0 * weights * tokens + 12.0 * layers * width * tokens**2 + 6.0 * head * masked


def state_bytes(encoder: EncoderConfig, vocabulary_size: int, *, ranks: int) -> tuple[int, ...]:
    """Bytes of weights, gradients and optimizer state on one of `ranks`, for ZeRO 0, 1, 2 and 3.

    For 2 and 3 these are DeepSpeed's own estimates (`estimate_zero2_model_states_mem_needs`, …),
    with the word embeddings as the largest thing gathered at once; 0 and 1 follow from the parts.
    """
    count = parameters(encoder, vocabulary_size)
    largest = max(layer_parameters(encoder), vocabulary_size * encoder.hidden_size)
    whole = ROUNDED_BYTES + GRADIENT_BYTES
    everything = whole + MASTER_BYTES
    return (
        count * everything,
        count * whole + count * MASTER_BYTES // ranks,
        count * ROUNDED_BYTES + count * (everything - ROUNDED_BYTES) // ranks,
        largest * 2 * ROUNDED_BYTES + count * (everything - ROUNDED_BYTES) // ranks,
    )


def activation_bytes(
    encoder: EncoderConfig, vocabulary_size: int, *, tokens: int, masked_share: float
) -> int:
    """Bytes that the forward pass of a micro-batch of `tokens` keeps for the backward pass."""
    layers = ACTIVATION_BYTES * encoder.num_hidden_layers * encoder.hidden_size
    head = round(masked_share * LOGIT_BYTES * vocabulary_size)
    return tokens * (layers + head)
