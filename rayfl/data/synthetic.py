"""A generated set: smooth class templates plus noise, in any shape, over any number of domains."""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from rayfl.data.config import DataConfig, SyntheticConfig
from rayfl.data.info import Built, DatasetInfo, Outline, Split
from rayfl.data.sampling import Floats, even, normals, permutation
from rayfl.seeding import numpy_generator


def build_synthetic(config: DataConfig, source: Path | None) -> Built:
    """Smooth random class templates plus noise.

    A pixel is ``gain_d * (template_k + noise * z) + bias_d + domain_shift * pattern_d``, scaled to uint8;
    gain, bias and pattern belong to domain d and vanish with ``domain_shift`` 0.
    """
    options = config.synthetic
    rng = numpy_generator(0, "synthetic-templates")
    templates = _smooth(rng, options.num_classes, options)
    shift = options.domain_shift
    gain = np.exp(0.5 * shift * normals(rng, options.num_domains))
    bias = shift * normals(rng, options.num_domains)
    pattern = bias[:, None, None, None] + shift * _smooth(rng, options.num_domains, options)

    def split(count: int, purpose: str) -> Split:
        rng = numpy_generator(0, purpose)
        labels = permutation(rng, count) % options.num_classes
        domains = permutation(rng, count) % options.num_domains
        images = np.empty((count, *templates.shape[1:]), dtype=np.uint8)
        for start in range(0, count, 2048):
            k, d = labels[start : start + 2048], domains[start : start + 2048]
            noise = normals(rng, k.size * templates[0].size).reshape(-1, *templates.shape[1:])
            clean = templates[k] + options.noise * noise
            if options.num_domains > 1:
                clean = gain[d, None, None, None] * clean + pattern[d]
            images[start : start + 2048] = np.clip(np.round(127.5 + 40.0 * clean), 0, 255)
        return Split(images=images, labels=labels, domains=domains if options.num_domains > 1 else None)

    return Built(
        train=split(options.num_train, "synthetic-train"),
        test=split(options.num_test, "synthetic-test"),
        num_classes=options.num_classes,
    )


def _smooth(rng: np.random.Generator, count: int, options: SyntheticConfig) -> Floats:
    """Random fields [count, C, H, W] of mean 0 and deviation 1: a coarse grid of normals, interpolated."""
    coarse = normals(rng, count * options.channels * 16).reshape(count, options.channels, 4, 4)
    rows, columns = (
        np.stack([np.interp(np.linspace(0, 3, size), np.arange(4), unit) for unit in np.eye(4)])
        for size in (options.height, options.width)
    )
    fields = np.einsum("ncgk,gh,kw->nchw", coarse, rows, columns)
    # Over all fields at once, so that images of a single pixel still differ between classes.
    return np.asarray((fields - fields.mean()) / max(float(fields.std()), 1e-12), dtype=np.float64)


def _outline(config: DataConfig) -> Outline:
    options = config.synthetic
    counts = even(options.num_train, options.num_classes)
    return Outline(
        shape=(options.channels, options.height, options.width),
        class_counts=tuple(counts.tolist()),
        num_test=options.num_test,
    )


DATASETS: dict[str, DatasetInfo] = {
    "synthetic": DatasetInfo(
        build=build_synthetic,
        description="smooth class templates plus noise, any shape and size, optional domains; generated",
        remedy="lower data.synthetic.num_train",
        outline=_outline,
        options=lambda config: asdict(config.synthetic),
        licence="none: generated",
    ),
}
