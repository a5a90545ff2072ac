"""Logits as probability distributions: the divergence of one from the reference's, the cross-entropy of the labels
(``classes`` checks these), perplexities, and the usual name of the output of logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.genai_folders import GenaiFolder
from .classes import Classes, Labels, in_rows
from .sums import JOINED, Sums, share

# The name that exporters give to the output that has logits.
LOGITS = "logits"


def name_of_logits(*models: Any) -> str:
    """Return the usual name of the output of logits; if models are folders of ONNX Runtime GenAI, the name in the first one."""
    folders = filter(None, map(GenaiFolder.find, models))
    return next((folder.logits() for folder in folders), LOGITS)


@dataclass
class DistributionSums(Sums):
    """The divergence at each place that counts, in nats, and sums over the places with a label."""

    divergences: list[float] = field(default_factory=list, metadata=JOINED)
    labelled: int = 0
    loss: float = 0.0  # cross-entropies, in nats
    reference_loss: float = 0.0
    squares: float = 0.0  # squares of the differences of the two
    probability: float = 0.0  # differences of the label's probabilities


@dataclass
class Distribution:
    """The probability distributions that an output of logits means, against the reference's. Figures are in nats; a figure of
    no place is NaN.

    `mean_divergence`, the quantiles and `max_divergence` are of the Kullback-Leibler divergence of the output's distribution
    from the reference's, over the places that count. With labels: the mean cross-entropies, their exponentials (the
    perplexities), the ratio of these with its standard error, and the mean difference of the probabilities of the label."""

    name: str
    places: int
    mean_divergence: float
    median_divergence: float
    divergence_90: float
    divergence_99: float
    divergence_999: float
    max_divergence: float
    cross_entropy: float | None = None
    reference_cross_entropy: float | None = None
    perplexity: float | None = None
    reference_perplexity: float | None = None
    perplexity_ratio: float | None = None
    perplexity_ratio_error: float | None = None
    probability_change: float | None = None


def distribution_sums(
    y: NDArray[Any], expected: NDArray[Any], name: str, labels: Labels | None, classes: Classes
) -> DistributionSums:
    """Return the sums of an output of logits and the reference's, of the same shape. `labels` are given if they fit. All is
    computed in float64, some places at a time. Raise ModelError if a label is neither a class nor ignored."""
    sums = DistributionSums()
    for scores, reference, wanted in in_rows(y, expected, name, labels, classes):
        with np.errstate(all="ignore"):
            logs, reference_logs = _log_softmax(scores), _log_softmax(reference)
            probabilities = np.exp(reference_logs)
            terms = probabilities * (reference_logs - logs)
            terms[probabilities == 0] = 0
            sums.divergences += np.maximum(terms.sum(axis=-1), 0).tolist()
            if wanted is not None:
                log, reference_log = (each[np.arange(len(wanted)), wanted] for each in (logs, reference_logs))
                sums.labelled += len(wanted)
                sums.loss -= float(np.sum(log))
                sums.reference_loss -= float(np.sum(reference_log))
                sums.squares += float(np.sum((log - reference_log) ** 2))
                sums.probability += float(np.sum(np.exp(log) - np.exp(reference_log)))
    return sums


@dataclass
class PlaceSums(Sums):
    """The sum of the divergences at each place of the texts, and the number of texts that have it."""

    divergences: dict[int, float] = field(default_factory=dict)
    texts: dict[int, int] = field(default_factory=dict)

    def means(self) -> list[float]:
        """Return the mean divergence at each place."""
        return [share(self.divergences[place], self.texts[place]) for place in sorted(self.texts)]


def place_sums(y: NDArray[Any], expected: NDArray[Any], name: str, start: int = 0) -> PlaceSums:
    """Return the divergences of logits of shape (texts, places, classes), whose first place is `start`. Other shapes have no
    places of texts."""
    if y.ndim != 3 or y.shape[-1] < 2:
        return PlaceSums()
    divergences = np.array(distribution_sums(y, expected, name, None, Classes()).divergences).reshape(y.shape[:-1])
    places = range(start, start + y.shape[1])
    return PlaceSums(dict(zip(places, divergences.sum(axis=0).tolist(), strict=True)), dict.fromkeys(places, len(y)))


def _log_softmax(scores: NDArray[Any]) -> NDArray[np.float64]:
    logs = scores.astype(np.float64)
    logs -= logs.max(axis=-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=-1, keepdims=True))
    return logs


def distribution(name: str, sums: DistributionSums, *, is_labelled: bool) -> Distribution:
    divergences = np.array(sums.divergences)
    quantiles = np.full(5, math.nan)
    if divergences.size:
        with np.errstate(invalid="ignore"):
            quantiles = np.quantile(divergences, [0.5, 0.9, 0.99, 0.999, 1])
        if not np.isnan(divergences).any():
            quantiles[np.isnan(quantiles)] = math.inf  # between two infinities
    mean = share(float(divergences.sum()), divergences.size)
    result = Distribution(name, divergences.size, mean, *quantiles.tolist())
    if is_labelled:
        places = sums.labelled
        result.cross_entropy, result.reference_cross_entropy = share(sums.loss, places), share(sums.reference_loss, places)
        result.perplexity, result.reference_perplexity = map(_exp, (result.cross_entropy, result.reference_cross_entropy))
        difference = result.cross_entropy - result.reference_cross_entropy
        result.perplexity_ratio = _exp(difference)
        variance = share(sums.squares, places) - difference**2
        # The error of the mean difference, whose exponential is the ratio.
        result.perplexity_ratio_error = result.perplexity_ratio * share(max(variance, 0.0), places - 1) ** 0.5
        result.probability_change = share(sums.probability, places)
    return result


def _exp(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(value))
