"""Whether the loader of encoded photographs keeps a training process busy.

    python -m benchmarks.data --only loader

ResNet-18 and, a lighter load that leaves decoding less time, MobileNet V3 small, both torchvision's; batches
of 32 photographs squeezed to 224x224, one compute thread. The wait share is the part of the time in which
the training thread has no batch to train on.
"""

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.data import DataConfig, Dataset, open_dataset
from rayfl.data.augment import augmentation
from rayfl.data.config import AugmentKind
from rayfl.data.prefetch import Prefetcher
from rayfl.seeding import numpy_generator

BATCH_SIZE = 32
CASES: tuple[tuple[str, AugmentKind], ...] = (
    ("resnet18", "none"),
    ("mobilenet_v3_small", "none"),
    ("mobilenet_v3_small", "crop_flip"),
)


def photographs(folder: Path, count: int) -> None:
    """JPEGs of quality 90 and sides of 224 to 400 pixels in two class folders: noise of all scales, as in
    pictures of nature, so that they weigh and decode like those."""
    from PIL import Image

    rng = numpy_generator(0, "photographs")
    for i in range(count):
        width, height = (int(side) for side in rng.integers(224, 401, 2))
        picture = np.zeros((height, width, 3))
        for scale in (4, 16, 64, 224):
            noise = (rng.random((scale, scale, 3)) * 255).astype(np.uint8)
            enlarged = Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)
            picture += np.asarray(enlarged) / scale**0.5
        picture *= 255 / picture.max()
        place = folder / ("test" if i % 8 == 0 else "train") / f"class{i % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.astype(np.uint8)).save(place / f"{i}.jpg", quality=90)


def wait_share(
    dataset: Dataset, model: str, threads: int, augment: AugmentKind, steps: int
) -> dict[str, float]:
    """Share of the time spent waiting for batches, and seconds per step, of ``steps`` training steps."""
    from torchvision.models import get_model

    torch.manual_seed(0)
    network = get_model(model, weights=None, num_classes=dataset.num_classes)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    waited, started = 0.0, time.perf_counter()
    batches = Prefetcher(threads).stream(_batches(dataset, augment, steps))
    for _ in range(steps):
        asked = time.perf_counter()
        inputs, labels = next(batches)
        waited += time.perf_counter() - asked
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    batches.close()
    total = time.perf_counter() - started
    return {"wait share": waited / total, "seconds per step": total / steps}


def _batches(
    dataset: Dataset, augment: AugmentKind, steps: int
) -> Iterator[Callable[[], tuple[Tensor, Tensor]]]:
    rng = numpy_generator(0, "loader")
    for step in range(steps):
        rows = rng.integers(len(dataset), size=BATCH_SIZE)
        change = augmentation(augment, 0, 1, 0, step)
        yield functools.partial(dataset.batch, rows, augment=change)


def loader(steps: int = 5) -> dict[str, float]:
    """Figures by model, augmentation and threads."""
    torch.set_num_threads(1)
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        source, root = Path(folder) / "photographs", Path(folder) / "prepared"
        photographs(source, 128)
        config = DataConfig(name="imagefolder", source=str(source), root=str(root))
        dataset = open_dataset(config)[0]
        for model, augment in CASES:
            for threads in (0, 1, 2):
                for what, value in wait_share(dataset, model, threads, augment, steps).items():
                    figures[f"{model}, augment={augment}, prefetch={threads}: {what}"] = value
    return figures
