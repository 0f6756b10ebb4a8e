"""Modules for the tests of blocks, and a store that shows how they use it."""

from __future__ import annotations

import ctypes

import hybrid_train as ht
import torch
from hybrid_train._blocks import find_units
from hybrid_train._units import Units
from hybrid_train._weights import Weights
from torch import nn

PLAIN = dict(predictor="none", schedule="constant", lr_warmup_steps=0, grad_clip=0, device="cpu")
STEPS = 22


# ---- modules: each has loss(batch) -------------------------------------------------------------------------------


class Regressor(nn.Module):
    def loss(self, batch):
        torch.manual_seed(batch)
        x = torch.randn(8, 24)
        return (self(x) - x.sum(1, keepdim=True).tanh()).square().mean()


class Mlp(Regressor):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(24))
        self.body = nn.Sequential(*(nn.Sequential(nn.Linear(24, 24), nn.Tanh()) for _ in range(3)))
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(3))
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        x = self.body(x * self.scale)
        for layer in self.layers:
            x = x + layer(x).relu()
        return self.head(x)


class Transformer(nn.Module):
    """Tied head, dropout and a mask that is passed by name."""

    def __init__(self, is_tied=True):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.position = nn.Parameter(torch.randn(10, 16) * 0.1)
        layer = dict(d_model=16, nhead=2, dim_feedforward=32, dropout=0.1, batch_first=True)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(**layer) for _ in range(3))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 40, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.embed(ids) + self.position
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x))

    def loss(self, batch):
        torch.manual_seed(batch)
        ids = torch.randint(40, (4, 11)).cumsum(1) % 40
        return nn.functional.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.norm(self.conv(x)) + x)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.stages = nn.Sequential(Residual(8), Residual(8), nn.MaxPool2d(2), Residual(8))
        self.head = nn.Linear(8, 5)

    def loss(self, batch):
        torch.manual_seed(batch)
        x, y = torch.randn(4, 3, 10, 10), torch.randint(5, (4,))
        return nn.functional.cross_entropy(self.head(self.stages(self.stem(x)).mean((2, 3))), y)


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = dict(d_model=12, nhead=2, dim_feedforward=24, dropout=0.05, batch_first=True)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**layer) for _ in range(2))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**layer) for _ in range(2))
        self.head = nn.Linear(12, 3)

    def loss(self, batch):
        torch.manual_seed(batch)
        x, y = torch.randn(4, 6, 12), torch.randn(4, 5, 12)
        for layer in self.encoder:
            x = layer(x)
        for layer in self.decoder:
            y = layer(y, x)
        return (self.head(y) - x[:, :5, :3].detach()).square().mean()


class Message(nn.Module):
    """Takes and returns a dict with features, edges and other things; one output is an input as it was."""

    def __init__(self):
        super().__init__()
        self.lin, self.gate = nn.Linear(6, 6), nn.Linear(12, 1)

    def forward(self, graph, depth):
        x, (begin, end) = graph["x"], graph["edges"]
        gate = self.gate(torch.cat([x[begin], x[end]], 1)).sigmoid()
        out = x.index_add(0, end, gate * self.lin(x)[begin] / (depth + 1))
        return {"x": out.tanh(), "edges": graph["edges"], "first": graph["first"], "name": "graph"}


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(3, 6)
        self.rounds = nn.ModuleList(Message() for _ in range(3))

    def loss(self, batch):
        torch.manual_seed(batch)
        first = self.enter(torch.randn(9, 3))
        graph = {"x": first, "edges": tuple(torch.randint(9, (2, 20))), "first": first}
        for depth, one in enumerate(self.rounds):
            graph = one(graph, depth=depth)
        return (graph["x"] * graph["first"]).sum(1).square().mean()


class Twice(Regressor):
    """Calls a block twice, another only for even batches, and shares a small parameter between blocks."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(4))
        self.layers[1].bias = self.layers[0].bias
        self.head = nn.Linear(24, 1)
        self.is_even = True

    def forward(self, x):
        for layer in (self.layers[0], self.layers[1], self.layers[0], self.layers[2]):
            x = layer(x).tanh()
        if self.is_even:
            x = x + self.layers[3](x)
        return self.head(x)

    def loss(self, batch):
        self.is_even = batch % 2 == 0
        return super().loss(batch)


class Frozen(Transformer):
    """A frozen embedding, a frozen layer between others, and frozen parameters in a layer that trains."""

    def __init__(self):
        super().__init__(is_tied=False)
        for one in (self.embed, self.layers[1], self.layers[0].self_attn, self.layers[2].norm1):
            one.requires_grad_(False)


class Dropout(Mlp):
    """Its masks come from torch's generator, which nothing sets after the first step."""

    def forward(self, x):
        x = nn.functional.dropout(self.body(x * self.scale), 0.1)
        for layer in self.layers:
            x = x + nn.functional.dropout(layer(x).relu(), 0.2)
        return self.head(x)

    def loss(self, batch):
        x = torch.randn(8, 24, generator=torch.Generator().manual_seed(batch))
        return (self(x) - x.sum(1, keepdim=True).tanh()).square().mean()


MODULES = (Mlp, Transformer, Cnn, EncoderDecoder, Graph, Twice)


def make(kind):
    torch.manual_seed(0)
    return kind()


# ---- training ----------------------------------------------------------------------------------------------------


def plain_loss(module, batch):
    """Gradients of parameters that the loss does not reach are zero, as with blocks."""
    return module.loss(batch) + 0 * sum(p.sum() for p in module.parameters() if p.requires_grad)


def trained(kind, steps=STEPS, **keys):
    """Losses and the module's state, with a loop."""
    module, losses = make(kind), []
    with ht.Loop(module, steps=steps, lr=3e-3, **{**PLAIN, **keys}) as loop:
        loss = module.loss if keys.get("blocks") else lambda batch: plain_loss(module, batch)
        while not loop.is_over:
            losses.append(loop.step(loss).loss)
    return losses, {name: t.clone() for name, t in module.state_dict().items()}


def trained_by_torch(kind, steps, lr=3e-3, clip=1.0):
    """Losses with torch's own AdamW and nothing of ours."""
    module, losses = make(kind), []
    parameters = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, foreach=False, fused=False)
    for number in range(steps):
        optimizer.zero_grad()
        loss = plain_loss(module, number)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


class Ring:
    """Keeps weights in host arrays. Units are copied to one of three buffers, which are NaN when nobody holds them."""

    def __init__(self, units):
        self.units = units
        shapes = [p.shape for unit in units for p in unit.parameters]
        self.is_frozen = [one for unit in units for one in unit.is_frozen]
        self.weights = [torch.zeros(shape) for shape in shapes]
        self.grads = [torch.zeros(shape) for shape in shapes]
        self.first = [sum(len(u.parameters) for u in units[:i]) for i in range(len(units))]
        size = max(sum(p.numel() for p in u.parameters) for u in units)
        self.buffers = [torch.full((size,), float("nan")) for _ in range(3)]
        self.held, self.next, self.wants_gradients = {}, 0, False
        self.counts, self.fetched = {"hold": 0, "given": 0}, []

    def numbers(self, unit):
        return range(self.first[unit], self.first[unit] + len(self.units[unit].parameters))

    def hold(self, unit):
        assert unit not in self.held and len(self.held) < 2, f"unit {unit} and {list(self.held)}"
        free = [i for i in range(3) if i not in self.held.values()]
        self.next += 1
        at = self.held[unit] = free[self.next % len(free)]
        self.counts["hold"] += 1
        out, begin = [], 0
        for i in self.numbers(unit):
            part = self.buffers[at][begin : begin + self.weights[i].numel()]
            part.copy_(self.weights[i].flatten())
            out.append(part.data_ptr())
            begin += len(part)
        return tuple(out)

    def release(self, unit):
        self.buffers[self.held.pop(unit)].fill_(float("nan"))

    def fetch(self, unit):
        assert unit not in self.held
        self.fetched.append(unit)

    def stays(self, unit):
        return False

    def add_gradients(self, unit, tokens, addresses):
        assert self.wants_gradients and unit in self.held and tokens == 1
        self.counts["given"] += 1
        for i, address in zip(self.numbers(unit), addresses):
            assert address is None or not self.is_frozen[i]
            if address is not None:
                size = self.grads[i].numel() * 4
                memory = (ctypes.c_char * size).from_address(address)
                self.grads[i] += torch.frombuffer(memory, dtype=torch.float32).view(self.grads[i].shape)

    def write(self, parameter, first, count, address):
        ctypes.memmove(self.weights[parameter].data_ptr() + 4 * first, address, 4 * count)

    def read(self, parameter, first, count, address):
        ctypes.memmove(address, self.weights[parameter].data_ptr() + 4 * first, 4 * count)


class InRing:
    """A module with its weights in a Ring, trained by a loop over the ring's arrays."""

    def __init__(self, module, blocks=True):
        self.module = module
        found = find_units(module, blocks)
        self.units, self.ring = Units(found, "cpu"), Ring(found)
        self.weights = Weights(module, self.units)
        self.names = [name for unit in found for name in unit.names]
        self.weights.attach(self.ring, False)
        self.units.attach(self.ring)

    def backward(self, batch):
        for g in self.ring.grads:
            g.zero_()
        self.ring.wants_gradients = True
        with self.units.passing(True):
            loss = self.module.loss(batch)
            loss.backward()
        self.ring.wants_gradients = False
        self.units.answered()
        assert not self.ring.held, self.ring.held
        return loss.item()

    def train(self, steps=STEPS):
        frozen = [name for name, is_frozen in zip(self.names, self.ring.is_frozen) if is_frozen]
        weights = {name: w.numpy() for name, w in zip(self.names, self.ring.weights) if name not in frozen}
        gradients = {name: g.numpy() for name, g in zip(self.names, self.ring.grads) if name not in frozen}
        losses = []
        with ht.Loop(weights, gradients=gradients, steps=steps, lr=3e-3, **PLAIN) as loop:
            while not loop.is_over:
                losses.append(loop.step(self.backward).loss)
        return losses
