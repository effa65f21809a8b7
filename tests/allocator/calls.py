"""Random calls of the operators that a training step runs, for `scratch.py`."""
import math
import random

import torch

aten = torch.ops.aten
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


class Cases:
    """Random calls of every operator that a training step runs."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def size(self, most=600):
        return self.random.choice([self.random.randint(1, most), 64 * self.random.randint(1, max(1, most // 64))])

    def float(self):
        return self.random.choice([F32, BF16, F16])

    def tensor(self, *shape, dtype=F32):
        return torch.empty(shape, dtype=dtype, device="cuda")

    def matrix(self, rows, columns, dtype, batch=()):
        """As models hand them to products: plain, transposed, a slice, a row or number for all."""
        kind = self.random.randrange(8)
        if kind < 3:
            return self.tensor(*batch, rows, columns, dtype=dtype)
        if kind < 5:
            return self.tensor(*batch, columns, rows, dtype=dtype).transpose(-1, -2)
        if kind == 5:
            return self.tensor(*batch, rows, 3 * columns, dtype=dtype)[..., columns : 2 * columns]
        if kind == 6:
            return self.tensor(*batch, rows, 2 * columns, dtype=dtype)[..., ::2]
        return self.tensor(dtype=dtype).expand(*batch, rows, columns)

    def products(self):
        for _ in range(60):
            n, m, k, dtype = self.size(), self.size(), self.size(), self.float()
            yield aten.mm.default, (self.matrix(n, k, dtype), self.matrix(k, m, dtype))
        for _ in range(40):
            n, m, k, dtype = self.size(), self.size(), self.size(), self.float()
            batch = (self.random.randint(1, 9),)
            first, second = self.matrix(n, k, dtype, batch), self.matrix(k, m, dtype, batch)
            yield aten.bmm.default, (first, second)
            yield aten.baddbmm.default, (self.tensor(*batch, n, m, dtype=dtype), first, second)
        for _ in range(40):
            n, m, k, dtype = self.size(), self.size(), self.size(), self.float()
            bias = self.random.choice([self.tensor(m, dtype=dtype), self.tensor(n, m, dtype=dtype)])
            yield aten.addmm.default, (bias, self.matrix(n, k, dtype), self.matrix(k, m, dtype))
        yield aten.mv.default, (self.tensor(30, 20), self.tensor(20))
        yield aten.dot.default, (self.tensor(30), self.tensor(30))

    def heads(self, batch, heads, length, width, dtype):
        if self.random.random() < 0.3:
            return self.tensor(batch, heads, length, width, dtype=dtype)
        return self.tensor(batch, length, heads, width, dtype=dtype).transpose(1, 2)

    def attention(self):
        is_old = torch.cuda.get_device_capability() < (8, 0)
        for _ in range(0 if is_old else 30):
            batch, own, length, keys = self.random.randint(1, 8), self.random.randint(1, 4), self.size(), self.size()
            groups, width = self.random.choice([1, 1, 2, 4]), self.random.choice([32, 64, 72, 96, 128, 256])
            dtype, rate = self.random.choice([BF16, F16]), self.random.choice([0.0, 0.1])
            query = self.heads(batch, own * groups, length, width, dtype)
            key, value = (self.heads(batch, own, keys, width, dtype) for _ in range(2))
            forward = aten._scaled_dot_product_flash_attention.default
            out = forward(query, key, value, rate, True)
            yield forward, (query, key, value, rate, True)
            if width % 8 == 0:
                yield aten._scaled_dot_product_flash_attention_backward.default, (
                    torch.empty_like(out[0]), query, key, value, out[0], out[1], None, None, length, keys, rate, True,
                    out[6], out[7])  # fmt: skip
        for _ in range(30):
            batch, heads, length, keys = self.random.randint(1, 8), self.random.randint(1, 16), self.size(), self.size()
            width, rate, dtype = self.random.choice([16, 32, 64, 80, 128, 192, 256]), self.random.choice([0.0, 0.1]), self.float()
            dtype = F16 if is_old and dtype == BF16 else dtype
            query = self.heads(batch, heads, length, width, dtype)
            own = self.random.choice([heads, heads, 1])
            key, value = (self.heads(batch, own, keys, width, dtype) for _ in range(2))
            bias = None
            if self.random.random() < 0.4:
                wide = -(-keys // 8) * 8
                bias = self.tensor(batch, 1, length, wide, dtype=dtype)[..., :keys].expand(batch, heads, length, keys)
            causal = bias is None and self.random.random() < 0.5
            forward = aten._scaled_dot_product_efficient_attention.default
            out = forward(query, key, value, bias, True, rate, causal)
            yield forward, (query, key, value, bias, True, rate, causal)
            yield aten._scaled_dot_product_efficient_attention_backward.default, (
                torch.empty_like(out[0]), query, key, value, bias, out[0], out[1], out[2], out[3], rate,
                [True, True, True, False], causal)  # fmt: skip

    def norms(self):
        for _ in range(25):
            rows, width, dtype = self.size(5000), self.size(2000), self.float()
            batch, weight = self.tensor(rows, width, dtype=dtype), self.tensor(width, dtype=dtype)
            out, mean, scale = aten.native_layer_norm.default(batch, [width], weight, weight, 1e-5)
            yield aten.native_layer_norm.default, (batch, [width], weight, weight, 1e-5)
            yield aten.native_layer_norm_backward.default, (out, batch, [width], mean, scale, weight, weight, [True] * 3)
            out, scale = aten._fused_rms_norm.default(batch, [width], weight, 1e-6)
            yield aten._fused_rms_norm.default, (batch, [width], weight, 1e-6)
            yield aten._fused_rms_norm_backward.default, (out, batch, [width], scale, weight, [True, True])
        for _ in range(10):
            count, groups, side, dtype = self.random.randint(1, 16), self.random.choice([1, 4, 8]), self.size(60), self.float()
            channels = groups * self.random.randint(1, 20)
            batch, weight = self.tensor(count, channels, side, side, dtype=dtype), self.tensor(channels, dtype=dtype)
            sizes = (count, channels, side * side, groups)
            out, mean, scale = aten.native_group_norm.default(batch, weight, weight, *sizes, 1e-5)
            yield aten.native_group_norm.default, (batch, weight, weight, *sizes, 1e-5)
            yield aten.native_group_norm_backward.default, (out, batch, mean, scale, weight, *sizes, [True] * 3)
            out, mean, scale = aten.native_group_norm.default(batch, None, None, *sizes, 1e-5)
            yield aten.native_group_norm.default, (batch, None, None, *sizes, 1e-5)
            yield aten.native_group_norm_backward.default, (out, batch, mean, scale, None, *sizes, [True, False, False])
            one = self.tensor(channels)
            weight = self.tensor(channels, dtype=F32)
            batch = self.random.choice([batch, batch.contiguous(memory_format=torch.channels_last)])
            out = aten.native_batch_norm.default(batch, weight, weight, one, one, True, 0.1, 1e-5)
            yield aten.native_batch_norm.default, (batch, weight, weight, one, one, True, 0.1, 1e-5)
            yield aten.native_batch_norm_backward.default, (
                batch, batch, weight, one, one, out[1], out[2], True, 1e-5, [True] * 3)  # fmt: skip

    def images(self, shape, dtype):
        """As models hand them to convolutions: plain, with channels last, a slice of more images or of wider ones, a number for all."""
        kind = self.random.randrange(8)
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape), torch.contiguous_format)
        if kind < 3:
            return self.tensor(*shape, dtype=dtype)
        if kind < 5:
            return self.tensor(*shape, dtype=dtype).contiguous(memory_format=last)
        if kind == 5:
            # Patches that were tokens: the first one of each image is no patch.
            count, channels, *places = shape
            tokens = self.tensor(count, 1 + math.prod(places), channels, dtype=dtype)[:, 1:]
            return tokens.transpose(1, 2).unflatten(2, places)
        if kind == 6:
            return self.tensor(*shape[:-1], 2 * shape[-1], dtype=dtype)[..., : shape[-1]]
        return self.tensor(dtype=dtype).expand(shape)

    def convolutions(self):
        """Where no algorithm wants a workspace, as on the runtime of rehearsals."""
        is_old = torch.cuda.get_device_capability() < (8, 0)
        for _ in range(150):
            dims, dtype = self.random.choice([1, 2, 2, 2, 2, 3]), self.float()
            dtype = F16 if is_old and dtype == BF16 else dtype
            groups, transposed = self.random.choice([1, 1, 1, 2, 8]), self.random.random() < 0.2
            read, made = groups * self.random.choice([1, 3, 16, 50]), groups * self.random.choice([1, 8, 24, 96])
            kernel, stride = self.random.choice([(1, 1), (3, 1), (3, 2), (4, 4), (16, 16)])
            places = [kernel * self.random.randint(1, 60 // kernel if dims < 3 else 2) for _ in range(dims)]
            batch = self.images([self.random.randint(1, 40), read, *places], dtype)
            ends = (read, made // groups) if transposed else (made, read // groups)
            weight = self.tensor(*ends, *[kernel] * dims, dtype=dtype)
            if dims == 2 and self.random.random() < 0.3:
                weight = weight.contiguous(memory_format=torch.channels_last)
            bias = self.tensor(made, dtype=dtype) if self.random.random() < 0.7 else None
            options = ([stride] * dims, [kernel // 2 if stride < 3 else 0] * dims, [1] * dims, transposed, [0] * dims, groups)
            out = aten.convolution.default(batch, weight, bias, *options)
            yield aten.convolution.default, (batch, weight, bias, *options)
            for gradient in (torch.empty_like(out), self.images(list(out.shape), dtype)):
                wanted = self.random.choice([[True, True], [True, True], [False, True], [True, False]])
                sizes = None if bias is None else [made]
                yield aten.convolution_backward.default, (
                    gradient, batch, weight, sizes, *options, [*wanted, bias is not None])  # fmt: skip

    def losses(self):
        for _ in range(20):
            rows, classes, dtype = self.size(5000), self.size(5000), self.float()
            batch = self.tensor(rows, classes, dtype=dtype)
            target = torch.zeros(rows, dtype=torch.long, device="cuda")
            yield aten._log_softmax.default, (batch, 1, False)
            yield aten._log_softmax_backward_data.default, (batch, batch, 1, dtype)
            yield aten._softmax.default, (batch, -1, False)
            yield aten._safe_softmax.default, (batch, -1)
            yield aten._softmax_backward_data.default, (batch, batch, -1, dtype)
            out, weight = aten.nll_loss_forward.default(batch, target, None, 1, -100)
            yield aten.nll_loss_forward.default, (batch, target, None, 1, -100)
            yield aten.nll_loss_backward.default, (out, batch, target, None, 1, -100, weight)
            yield aten.embedding_dense_backward.default, (batch, target, self.random.choice([10, 5000, 50000]), -1, False)
            yield aten.embedding_dense_backward.default, (batch, target, 5000, 3, False)
            yield aten.embedding.default, (batch, target)
            yield aten.mse_loss.default, (batch, batch)

    def reductions(self):
        for _ in range(60):
            shape = [self.size(3000), self.size(3000)] if self.random.random() < 0.5 else [self.size(60) for _ in range(3)]
            batch = self.tensor(*shape, dtype=self.float())
            if self.random.random() < 0.2:
                batch = batch.transpose(-1, -2)
            axes = self.random.choice([[0], [-1], list(range(len(shape) - 1)), list(range(len(shape)))])
            keep = self.random.random() < 0.5
            yield aten.sum.dim_IntList, (batch, axes, keep)
            yield aten.mean.dim, (batch, axes, keep)
            yield aten.amax.default, (batch, axes, keep)
            yield aten.sum.default, (batch,)
            yield aten.linalg_vector_norm.default, (batch,)
        for _ in range(12):
            batch = self.tensor(self.size(2000), self.size(2000), dtype=self.float())
            yield aten.argmax.default, (batch, self.random.choice([0, 1]))
            yield aten.max.dim, (batch, self.random.choice([0, 1]))
            yield aten.cumsum.default, (batch, self.random.choice([0, 1]))
            yield aten.topk.default, (batch, min(8, batch.shape[1]))
            yield aten.sort.default, (batch, 1)
            # Of 16 bits, what CUB takes before Hopper follows how many thread blocks run at once, which only a card knows.
            many = self.tensor(self.random.choice([1, 7, 30, 100, 200]), self.size(40_000))
            yield aten.topk.default, (many, min(50, many.shape[1]))
            yield aten.sort.default, (many, 1)
            chosen = self.tensor(self.size(300_000), dtype=torch.int64)
            yield aten.sort.default, (chosen,)
            yield aten.sort.stable, (chosen,), {"stable": True, "dim": 0}
            yield aten.logsumexp.default, (batch, [1])

    def indices(self):
        for _ in range(15):
            rows, width, count, dtype = self.size(4000), self.size(600), self.size(6000), self.float()
            table, picked = self.tensor(rows, width, dtype=dtype), self.tensor(count, width, dtype=dtype)
            index = torch.zeros(count, dtype=torch.long, device="cuda")
            spread = index.unsqueeze(1).expand(count, width)
            yield aten.index.Tensor, (table, [index])
            yield aten.index_select.default, (table, 0, index)
            yield aten.index_put_.default, (table, [index], picked, True)
            yield aten.index_put_.default, (table, [index], picked, False)
            pairs = self.tensor(rows, 7, width, dtype=dtype)
            yield aten.index_put_.default, (pairs, [index, index], picked, True)
            yield aten._index_put_impl_.default, (table, [index], picked, True)
            yield aten.index_add.default, (table, 0, index, picked)
            yield aten.index_add_.default, (table, 0, index, picked)
            yield aten.scatter_add.default, (table, 0, spread, picked)
            yield aten.scatter_add_.default, (table, 0, spread, picked)
            yield aten.gather.default, (table, 0, spread)

    def rest(self):
        for _ in range(6):
            shape, dtype = (self.size(2000), self.size(2000)), self.float()
            batch = self.tensor(*shape, dtype=dtype)
            yield aten.native_dropout.default, (batch, 0.1, True)
            yield aten.cat.default, ([batch, batch, batch[:, :1].expand_as(batch)], 0)
            yield aten.stack.default, ([batch, batch.t().contiguous().t()],)
            yield aten.gelu_backward.default, (batch, batch)
            yield aten._to_copy.default, (batch,), {"dtype": F32}
            yield aten.masked_fill.Scalar, (batch, batch.bool(), 0.0)
            yield aten.where.self, (batch.bool(), batch, batch)
            yield aten.tril.default, (batch,)
            yield aten.add.Tensor, (batch, batch.t().contiguous().t())
            yield aten.flip.default, (batch, [0])
            yield aten.roll.default, (batch, [1], [0])
            yield aten.constant_pad_nd.default, (batch, [0, 3])
            yield aten.repeat.default, (batch, [2, 1])
        for count in (1, 30, 200):
            many = [self.tensor(self.size(), self.size()) for _ in range(count)]
            steps = [self.tensor() for _ in range(count)]
            yield aten._foreach_add_.Scalar, (steps, 1)
            yield aten._foreach_mul_.Scalar, (many, 0.9)
            yield aten._foreach_lerp_.Scalar, (many, many, 0.1)
            yield aten._foreach_addcmul_.Scalar, (many, many, many, 0.1)
            yield aten._foreach_sqrt.default, (many,)
            yield aten._foreach_div_.ScalarList, (many, [0.5] * count)
            yield aten._foreach_addcdiv_.ScalarList, (many, many, many, [0.5] * count)
            yield aten._foreach_norm.Scalar, (many,)
            yield aten._foreach_mul_.Tensor, (many, self.tensor())
            yield aten._fused_adamw_.default, (many, many, many, many, [], steps), dict(
                lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)

    def large(self):
        """Beyond what addresses of 32 bits reach."""
        for _ in range(12):
            rows, width = self.random.choice([1000, 8192, 40_000, 70_000]), self.random.choice([30_000, 65_536, 128_256])
            batch = self.tensor(rows, width, dtype=self.float())
            if self.random.random() < 0.3:
                batch = batch.t()
            axes = self.random.choice([[0], [1], [0, 1]])
            yield aten.sum.dim_IntList, (batch, axes)
            yield aten.mean.dim, (batch, axes, True)
            yield aten.amax.default, (batch, axes)
            yield aten.argmax.default, (batch, axes[0])

    def all(self):
        parts = (self.products, self.attention, self.norms, self.losses, self.reductions, self.indices, self.rest, self.large)
        for part in parts:
            yield from part()

