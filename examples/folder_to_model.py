"""The whole story with images of your own: learn a folder, use the model, learn new classes another day, export.

    python examples/folder_to_model.py

The images are real digits, written as PNG files into a temporary folder, as yours would be.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from autorecall import cli, load_dataset, load_model


def write_images(folder: Path, digits: tuple[int, ...]) -> None:
    """What you have: FOLDER/train/<class>/<image> and FOLDER/test/<class>/<image>."""
    data = load_dataset("mnist")
    for part, split, count in (("train", data.train, 300), ("test", data.test, 50)):
        for digit in digits:
            place = folder / part / f"digit {digit}"
            place.mkdir(parents=True)
            for number, image in enumerate(split.inputs[split.labels == digit][:count]):
                Image.fromarray(image[0]).save(place / f"{number}.png")


def autorecall(*words: str | Path) -> None:
    """What you would type into a terminal."""
    print("\n$ autorecall", *words)
    if cli.dispatch([str(word) for word in words]):
        raise SystemExit(1)


def main() -> None:
    """Monday, Tuesday, and a file for somebody else's program."""
    with TemporaryDirectory() as temporary:
        here = Path(temporary)
        write_images(here / "monday", (0, 1, 2, 3))
        write_images(here / "tuesday", (4, 5))

        autorecall("run", "--data", here / "monday", "--out", here / "runs")
        (monday,) = here.glob("runs/folder/*/seed-0")
        three = here / "monday" / "test" / "digit 3" / "1.png"
        autorecall("predict", monday, three, "--top", "2")

        autorecall("learn", monday, "--data", here / "tuesday", "--test-data", here / "monday" / "test")
        tuesday = monday.with_name("seed-0+tuesday")
        five = here / "tuesday" / "test" / "digit 5" / "0.png"
        autorecall("predict", tuesday, three, five)

        model = load_model(tuesday)
        print("\nfrom Python:", model.predict([three, five]), "of", model.classes)
        if find_spec("onnx") is not None:
            autorecall("export", tuesday, "--onnx", here / "model.onnx")


if __name__ == "__main__":
    main()
