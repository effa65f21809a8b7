"""Windows that slide: strides and paddings from sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Windows of pools, where the stride alone does not say.
KERNELS = (2, 3, 1, 4, 5, 7, 8)
LARGEST_STRIDE = 64
DILATIONS = (1, 2, 3, 4)

Window = tuple[int, int, int]


def windows(size: int, result: int, kernel: int) -> Iterator[Window]:
    """Stride, padding and dilation that lead from a size to a result: without dilation first, then with the stride that
    the sizes say, then with the padding that keeps the middle of the window inside, then with none."""
    for dilation in DILATIONS:
        span = dilation * (kernel - 1) + 1
        for stride in _strides(size, result):
            for padding in dict.fromkeys((span // 2, 0, *range(span))):
                if size + 2 * padding >= span and (size + 2 * padding - span) // stride + 1 == result:
                    yield stride, padding, dilation


def _strides(size: int, result: int) -> Iterator[int]:
    usual = max(round(size / max(result, 1)), 1)
    return iter(dict.fromkeys((usual, *range(1, min(size, LARGEST_STRIDE) + 1))))


def _alike(sizes: list[int], results: list[int], kernels: list[int]) -> list[Window] | None:
    """The first window that serves all dimensions; otherwise one for each."""
    each = [list(windows(*extents)) for extents in zip(sizes, results, kernels, strict=True)]
    if not all(each):
        return None
    same = next((window for window in each[0] if all(window in others for others in each)), None)
    return [same] * len(each) if same else [found[0] for found in each]


def convolutions(image: list[int], weight: list[int], result: list[int]) -> Iterator[dict[str, Any]]:
    """How a convolution of an image with a weight gives a result."""
    if not len(image) == len(weight) == len(result) > 2:
        return
    sizes, kernels, results = image[2:], weight[2:], result[2:]
    found = _alike(sizes, results, kernels) if image[1] % weight[1] == 0 and weight[0] == result[1] else None
    if found:
        yield _convolution(found, False, [0] * len(found), image[1] // weight[1])
    # A transposed one leads from its result to its image.
    found = _alike(results, sizes, kernels) if image[1] == weight[0] and result[1] % weight[1] == 0 else None
    if found:
        bare = [
            (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
            for size, kernel, (stride, padding, dilation) in zip(sizes, kernels, found, strict=True)
        ]
        extra = [extent - reached for extent, reached in zip(results, bare, strict=True)]
        yield _convolution(found, True, extra, result[1] // weight[1])


def _convolution(found: list[Window], transposed: bool, extra: list[int], groups: int) -> dict[str, Any]:
    strides, paddings, dilations = (list(values) for values in zip(*found, strict=True))
    shared = {"stride": strides, "padding": paddings, "dilation": dilations}
    return {**shared, "transposed": transposed, "output_padding": extra, "groups": groups}


def pools(image: list[int], result: list[int]) -> Iterator[dict[str, Any]]:
    """How a pool over an image gives a result: a window as wide as its stride first."""
    sizes, results = image[-2:], result[-2:]
    usual = max(round(sizes[0] / max(results[0], 1)), 1)
    for kernel in dict.fromkeys((usual, *KERNELS)):
        # Pools allow a padding of half the window.
        each = [
            [window for window in windows(*extents, kernel) if window[2] == 1 and window[1] <= kernel // 2]
            for extents in zip(sizes, results, strict=True)
        ]
        shared = [window for window in each[0] if window in each[1]]
        # A window that stands still, or steps beyond itself, is not what a model means.
        for stride, padding, dilation in sorted(shared, key=lambda window: (window[0] != usual, window[1])):
            yield {
                "kernel_size": [kernel] * 2,
                "stride": [stride] * 2,
                "padding": [padding] * 2,
                "dilation": [dilation] * 2,
                "ceil_mode": False,
            }
