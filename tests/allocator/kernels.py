"""Random calls of what models of images, sound and mixtures of experts run beside what all models do; see `scratch.py`."""
import torch

aten = torch.ops.aten
F32, BF16, F16, I64 = torch.float32, torch.bfloat16, torch.float16, torch.int64


def norms(cases):
    """Of what has gaps or lies the other way, and of more rows than one pass adds up."""
    for _ in range(10):
        rows, width, dtype = cases.size(3000), cases.size(2000), cases.float()
        batch, gradient = (cases.matrix(rows, width, dtype) for _ in range(2))
        yield from layer_norm(cases, batch, gradient)
    for _ in range(10):
        rows, width, dtype = cases.random.randint(65_000, 150_000), cases.size(400), cases.float()
        batch, gradient = (cases.tensor(rows, width, dtype=dtype) for _ in range(2))
        yield from layer_norm(cases, batch, gradient)


def layer_norm(cases, batch, gradient):
    width, dtype = batch.shape[-1], batch.dtype
    weight = cases.tensor(width, dtype=dtype)
    _, mean, scale = aten.native_layer_norm.default(batch, [width], weight, weight, 1e-5)
    wanted = cases.random.choice([[True] * 3, [True, False, False], [False, True, True]])
    yield aten.native_layer_norm.default, (batch, [width], weight, weight, 1e-5)
    yield aten.native_layer_norm_backward.default, (gradient, batch, [width], mean, scale, weight, weight, wanted)
    _, scale = aten._fused_rms_norm.default(batch, [width], weight, 1e-6)
    yield aten._fused_rms_norm.default, (batch, [width], weight, 1e-6)
    yield aten._fused_rms_norm_backward.default, (gradient, batch, [width], scale, weight, [True, True])


def strided_norms(cases):
    """Group and batch norm of images in either format."""
    for _ in range(10):
        count, groups, side, dtype = cases.random.randint(1, 16), cases.random.choice([1, 4, 8]), cases.size(60), cases.float()
        channels = groups * cases.random.randint(1, 20)
        batch, gradient = (cases.images((count, channels, side, side), dtype) for _ in range(2))
        weight, sizes = cases.tensor(channels, dtype=dtype), (count, channels, side * side, groups)
        _, mean, scale = aten.native_group_norm.default(batch, weight, weight, *sizes, 1e-5)
        yield aten.native_group_norm.default, (batch, weight, weight, *sizes, 1e-5)
        yield aten.native_group_norm_backward.default, (gradient, batch, mean, scale, weight, *sizes, [True] * 3)
        one, scale = cases.tensor(channels), cases.tensor(channels)
        out = aten.native_batch_norm.default(batch, scale, scale, one, one, True, 0.1, 1e-5)
        yield aten.native_batch_norm.default, (batch, scale, scale, one, one, True, 0.1, 1e-5)
        yield aten.native_batch_norm_backward.default, (gradient, batch, scale, one, one, out[1], out[2], True, 1e-5, [True] * 3)


def pools(cases):
    """Of images, and images made larger and smaller."""
    for _ in range(20):
        count, channels, side, dtype = cases.random.randint(1, 9), cases.random.choice([3, 16, 50]), 2 * cases.size(40), cases.float()
        batch = cases.images((count, channels, side, side), dtype)
        window = ([3, 3], [2, 2], [1, 1])
        out, places = aten.max_pool2d_with_indices.default(batch, *window)
        gradient = cases.images(tuple(out.shape), dtype)
        yield aten.max_pool2d_with_indices.default, (batch, *window)
        yield aten.max_pool2d_with_indices_backward.default, (gradient, batch, *window, [1, 1], False, places)
        out = aten.avg_pool2d.default(batch, [2, 2], [2, 2])
        gradient = cases.images(tuple(out.shape), dtype)
        yield aten.avg_pool2d.default, (batch, [2, 2], [2, 2])
        yield aten.avg_pool2d_backward.default, (gradient, batch, [2, 2], [2, 2], [0, 0], False, True, None)
        out = aten._adaptive_avg_pool2d.default(batch, [7, 7])
        yield aten._adaptive_avg_pool2d_backward.default, (torch.empty_like(out), batch)
        gradient = cases.images(tuple(out.shape), dtype)
        yield aten._adaptive_avg_pool2d.default, (batch, [7, 7])
        yield aten._adaptive_avg_pool2d_backward.default, (gradient, batch)
        wide = (count, channels, 2 * side, 2 * side)
        gradient = cases.images(wide, dtype)
        yield aten.upsample_nearest2d.default, (batch, wide[2:])
        yield aten.upsample_nearest2d_backward.default, (gradient, wide[2:], batch.shape)
        yield aten.upsample_bilinear2d.default, (batch, wide[2:], False)
        yield aten.upsample_bilinear2d_backward.default, (gradient, wide[2:], batch.shape, False)
        yield aten.upsample_bicubic2d.default, (batch, wide[2:], False)
        yield aten.upsample_bicubic2d_backward.default, (gradient, wide[2:], batch.shape, False)
        yield aten.reflection_pad2d.default, (batch, [1, 1, 1, 1])


def statistics(cases):
    """Variances, products, and the largest and smallest of all."""
    for _ in range(15):
        shape = [cases.size(3000), cases.size(3000)] if cases.random.random() < 0.5 else [cases.size(60) for _ in range(3)]
        batch = cases.tensor(*shape, dtype=cases.float())
        if cases.random.random() < 0.2:
            batch = batch.transpose(-1, -2)
        axes = cases.random.choice([[0], [-1], list(range(len(shape)))])
        for operator in (aten.var.correction, aten.std.correction, aten.var_mean.correction):
            yield operator, (batch, axes), {"correction": 1, "keepdim": True}
        yield aten.max.default, (batch,)
        yield aten.min.default, (batch,)
        yield aten.aminmax.default, (batch,), {"dim": axes[0]}
        yield aten.argmax.default, (batch,)
        yield aten.sum.dim_IntList, (batch.bool(), axes)
        yield aten.sum.dim_IntList, (batch, axes), {"dtype": F32}
        yield aten.any.default, (batch.bool(),)
        yield aten.any.dim, (batch.bool(), axes[0])
        yield aten.linalg_vector_norm.default, (batch, 2, [axes[0]], True)
        yield aten._softmax.default, (batch, 0, False)
        yield aten._softmax_backward_data.default, (batch, batch, 0, batch.dtype)
        yield aten._log_softmax.default, (batch, 0, False)
        yield aten._log_softmax_backward_data.default, (batch, batch, 0, batch.dtype)
        yield aten._softmax_backward_data.default, (batch.contiguous(), batch, 0, batch.dtype)
        yield aten._log_softmax_backward_data.default, (batch, batch.contiguous(), 0, batch.dtype)


def picks(cases):
    """Numbers of rows: running sums, scattered and gathered, as routers of experts and windows of images have them."""
    for _ in range(10):
        rows, width, count, dtype = cases.size(4000), cases.size(600), cases.size(6000), cases.float()
        table, picked = cases.tensor(rows, width, dtype=dtype), cases.tensor(count, width, dtype=dtype)
        index = torch.zeros(count, dtype=I64, device="cuda")
        spread = index.unsqueeze(1).expand(count, width)
        numbers = cases.tensor(cases.size(300_000), dtype=I64)
        yield aten.cumsum.default, (numbers, 0)
        yield aten.cumsum.default, (cases.tensor(rows, width, dtype=I64), 1)
        yield aten.cumsum.default, (table.t(), 0)
        yield aten.cumsum.default, (numbers.bool(), 0)
        yield aten.cumsum.default, (table, 0), {"dtype": F32}
        yield aten.scatter.value, (table, 1, torch.zeros(rows, 1, dtype=I64, device="cuda"), 1.0)
        yield aten.scatter.src, (table, 0, spread, picked)
        yield aten.scatter_reduce.two, (table, 0, spread, picked, "amax")
        yield aten.gather.default, (table.t(), 1, spread.t())
        yield aten.index_put_.default, (table, [None, torch.zeros(50, dtype=I64, device="cuda")], cases.tensor(rows, 50, dtype=dtype), False)
        yield aten.masked_fill_.Scalar, (table, table.bool(), 0.0)
        yield aten.one_hot.default, (index, 50)
        yield aten.topk.default, (table, min(2, width), 1, True, False)
        yield aten.topk.default, (table, min(2, rows), 0)


def losses(cases):
    """Of images and sound, and gates."""
    for _ in range(6):
        shape, dtype = (cases.size(2000), 2 * cases.size(1000)), cases.float()
        batch = cases.tensor(*shape, dtype=dtype)
        one = cases.tensor(dtype=dtype)
        yield aten.mse_loss_backward.default, (one, batch, batch, 1)
        yield aten.smooth_l1_loss.default, (batch, batch)
        yield aten.smooth_l1_loss_backward.default, (one, batch, batch, 1, 1.0)
        yield aten.huber_loss.default, (batch, batch)
        yield aten.binary_cross_entropy_with_logits.default, (batch, batch)
        yield aten.glu.default, (batch,)
        yield aten.glu_backward.default, (aten.glu.default(batch), batch, -1)
        yield aten._prelu_kernel_backward.default, (batch, batch, cases.tensor(1, shape[1], dtype=dtype))
        yield aten.hardswish_backward.default, (batch, batch)
        yield aten.hardsigmoid_backward.default, (batch, batch)
        yield aten.silu_backward.default, (batch, batch)
        yield aten.elu_backward.default, (batch, 1.0, 1.0, 1.0, False, batch)
        yield aten.leaky_relu_backward.default, (batch, batch, 0.1, False)
        yield aten.mish_backward.default, (batch, batch)
        yield aten.log_sigmoid_forward.default, (batch,)
        yield aten.bernoulli.p, (batch, 0.5)
        yield aten.bernoulli_.float, (batch, 0.5)
        yield aten.rand_like.default, (batch,)
        yield aten.nll_loss2d_forward.default, (
            cases.tensor(4, 7, 30, 30, dtype=dtype), torch.zeros(4, 30, 30, dtype=I64, device="cuda"), None, 1, -100)
        yield aten.nll_loss2d_backward.default, (
            one, cases.tensor(4, 7, 30, 30, dtype=dtype), torch.zeros(4, 30, 30, dtype=I64, device="cuda"), None, 1, -100, one)
        kernel = cases.tensor(64, 16, 9, dtype=dtype)
        for dim, extent in ((0, (64, 1, 1)), (2, (1, 1, 9))):
            size = cases.tensor(*extent, dtype=dtype)
            _, length = aten._weight_norm_interface.default(kernel, size, dim)
            yield aten._weight_norm_interface.default, (kernel, size, dim)
            yield aten._weight_norm_interface_backward.default, (kernel, kernel, size, length, dim)
        yield aten.addcmul.default, (batch, batch, batch)
        yield aten.roll.default, (cases.tensor(4, 28, 28, 24, dtype=dtype), [-3, -3], [1, 2])
        yield aten.repeat_interleave.self_int, (batch, 2, 0)


def all(cases):
    for part in (norms, strided_norms, pools, statistics, picks, losses):
        yield from part(cases)
