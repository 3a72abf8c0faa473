"""RapidOCR on batches: text is found picture by picture, and read in all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_DETECTOR_PIXELS = 736  # RapidOCR enlarges a picture whose shorter side is smaller than this
_WARM_UP_LINES = ("warm-up 0123456789", "The quick brown fox")


class Reader:
    """The models; nothing is loaded before `load`."""

    def __init__(self) -> None:
        self._engine: Any = None

    def load(self) -> None:
        # the imports are most of the start, and /health answers 503 meanwhile
        from rapidocr_onnxruntime import RapidOCR  # type: ignore[import-not-found]

        self._engine = RapidOCR()
        self._read([_warm_up_picture()])

    def read(self, images: Sequence[bytes]) -> list[list[str] | Exception]:
        """Text lines of each image from top to bottom, or a ValueError where the bytes are no image."""
        import cv2  # type: ignore[import-not-found]
        import numpy as np

        pictures = [cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR) for image in images]
        lines = iter(self._read([picture for picture in pictures if picture is not None]))
        return [
            ValueError("not an image that can be decoded") if picture is None else next(lines)
            for picture in pictures
        ]

    def _read(self, pictures: Sequence[Any]) -> list[list[str]]:
        engine = self._engine
        crops: list[Any] = []
        counts = []
        for picture in pictures:
            found = self._crops(engine.load_img(picture))
            counts.append(len(found))
            crops += found
        if not crops:
            return [[] for _ in pictures]
        if engine.use_cls:  # which lines stand on their heads
            crops, _, _ = engine.text_cls(crops)
        results, _ = engine.text_rec(crops, False)
        lines = iter(results)
        return [
            [text for text, score, *_ in (next(lines) for _ in range(count)) if score >= engine.text_score]
            for count in counts
        ]

    def _crops(self, picture: Any) -> list[Any]:
        """The lines of one picture, cut out."""
        engine = self._engine
        picture, _, _ = engine.preprocess(picture)
        picture, _ = engine.maybe_add_letterbox(picture, {})
        boxes, _ = engine.auto_text_det(picture)
        return [] if boxes is None else list(engine.get_crop_img_list(picture, boxes))


def _warm_up_picture() -> Any:
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (_DETECTOR_PIXELS, _DETECTOR_PIXELS), "white")
    draw = ImageDraw.Draw(picture)
    for number, line in enumerate(_WARM_UP_LINES):
        draw.text((40, 40 + 100 * number), line, fill="black", font=ImageFont.load_default(40))
    return np.asarray(picture)
