"""Features of two texts beside each other, against a plain computation."""

import numpy as np
import torch

from cloze.model.data.batch import Example, pack_sequences
from cloze.model.encoder.comparison import FEATURES, comparison, packed_comparison

WIDTH = 8


def unit(vectors: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) * WIDTH**0.5
    return scaled


def plain(states: np.ndarray, words: np.ndarray, first: int) -> np.ndarray:
    """The features of one sequence, of which so many tokens are the first segment's."""
    one, other = unit(states[:first].sum(0)), unit(states[first:].sum(0))
    words = unit(words)
    a, b = words[:first], words[first:]
    near_a, near_b = b[(a @ b.T).argmax(1)], a[(b @ a.T).argmax(1)]
    distances = np.abs(a - near_a).mean(0), np.abs(b - near_b).mean(0)
    return np.concatenate((one * other, np.abs(one - other), *distances))


def packed(*sequences: tuple[int, int]):
    """A batch of sequences, by the number of tokens of both segments."""
    return pack_sequences([Example([7] * (a + b), segment_a_length=a) for a, b in sequences])


def test_features_of_packed_sequences_equal_those_computed_one_by_one() -> None:
    lengths = ((3, 4), (1, 6), (5, 2))
    batch = packed(*lengths)
    torch.manual_seed(0)
    states_TH, words_TH = torch.randn(2, batch.tokens, WIDTH).unbind(0)
    found = packed_comparison(states_TH, words_TH, batch).numpy()
    assert found.shape == (len(lengths), FEATURES * WIDTH)
    at = 0
    for row, (first, second) in zip(found, lengths, strict=True):
        own = slice(at, at := at + first + second)
        expected = plain(states_TH[own].numpy(), words_TH[own].numpy(), first)
        np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-5)


def test_words_that_stand_in_the_other_text_are_at_no_distance_from_it() -> None:
    words_TH = torch.eye(WIDTH)[[0, 1, 2, 2, 0]]  # the first text has a word of its own
    features = packed_comparison(words_TH, words_TH, packed((3, 2)))[0]
    first, second = features[2 * WIDTH :].view(2, WIDTH)
    assert first[1] > 0 and not second.any()


def test_a_sequence_without_a_second_text_has_finite_features() -> None:
    words_TH = torch.randn(4, WIDTH, requires_grad=True)
    features = packed_comparison(words_TH, words_TH, packed((4, 0)))
    features.sum().backward()
    assert features.isfinite().all() and words_TH.grad is not None
    assert words_TH.grad.isfinite().all()


def test_padding_changes_no_feature() -> None:
    states_BSH, words_BSH = torch.randn(2, 1, 5, WIDTH).unbind(0)
    inside_B2S = torch.tensor([[[1, 1, 0, 0, 0], [0, 0, 1, 0, 0]]])
    whole = comparison(states_BSH, words_BSH, inside_B2S)
    cut = comparison(states_BSH[:, :3], words_BSH[:, :3], inside_B2S[..., :3])
    torch.testing.assert_close(whole, cut)
