"""A convolution of integers, computed number by number from its definition, and the blocked layout of arrays."""

import numpy as np


def convolve(x, w, strides=(1, 1), dilations=(1, 1), pads=(0, 0, 0, 0), group=1, zero=0):
    """Return the int64 sums of a convolution of x (N, C, H, W) by w (M, C / group, rows, columns). Pads hold `zero`, which is
    subtracted from all of x."""
    top, left, bottom, right = pads
    x = np.pad(x.astype(np.int64) - zero, ((0, 0), (0, 0), (top, bottom), (left, right)))
    outer, inner, kernel_rows, kernel_columns = w.shape
    lengths = [
        (size - (kernel - 1) * dilation - 1) // stride + 1
        for size, kernel, dilation, stride in zip(x.shape[2:], w.shape[2:], dilations, strides, strict=True)
    ]
    y = np.zeros((len(x), outer, *lengths), np.int64)
    for channel in range(outer):
        first = channel // (outer // group) * inner
        for row, column in np.ndindex(*lengths):
            taken = [
                slice(at * stride, at * stride + (kernel - 1) * dilation + 1, dilation)
                for at, stride, kernel, dilation in zip(
                    (row, column), strides, (kernel_rows, kernel_columns), dilations, strict=True
                )
            ]
            part = x[:, first : first + inner, taken[0], taken[1]]
            y[:, channel, row, column] = (part * w[channel].astype(np.int64)).sum(axis=(1, 2, 3))
    return y


def in_blocks(x, lanes, value=0):
    """Return x (N, C, H, W) in blocks of channels, in the shape (N, C rounded up, H, W). Added channels hold `value`."""
    n, channels, h, w = x.shape
    whole = -(-channels // lanes) * lanes
    filled = np.full((n, whole, h, w), value, x.dtype)
    filled[:, :channels] = x
    result = np.empty((n, whole // lanes, h, w, lanes), x.dtype)
    for channel in range(whole):
        result[:, channel // lanes, :, :, channel % lanes] = filled[:, channel]
    return result.reshape(n, whole, h, w)
