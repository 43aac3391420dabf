"""Make the embedded MNIST-5k from the original MNIST files.

    python scripts/make_mnist5k.py DIR OUT      # DIR holds the four idx files, OUT is src/autorecall/data/mnist5k.npz

Validation: the last 300 of each class in the training file (3,000, 5 % of 60,000). Training: 500 of each class, drawn
from the rest. Test: all 10,000. Everything stays in file order, and the same files give the same bytes.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np

from autorecall.data.mnist import five_thousand, read_pair
from autorecall.errors import DataError


def mnist5k(folder: Path) -> bytes:
    """The content of mnist5k.npz."""
    images, labels = read_pair(folder, "train")
    test_images, test_labels = read_pair(folder, "t10k")
    drawn, held = five_thousand(labels)
    content = io.BytesIO()
    np.savez_compressed(
        content,
        train_images=images[drawn, 0],
        train_labels=labels[drawn].astype(np.uint8),
        val_images=images[held, 0],
        val_labels=labels[held].astype(np.uint8),
        test_images=test_images[:, 0],
        test_labels=test_labels.astype(np.uint8),
    )
    return content.getvalue()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        content = mnist5k(Path(sys.argv[1]))
    except DataError as error:
        sys.exit(str(error))
    Path(sys.argv[2]).write_bytes(content)
    print(f"{sys.argv[2]}: {len(content):,} bytes")
