"""Data that is handed to a loop: the same batches by number, whoever loads them."""

from __future__ import annotations

import os
import random
import unittest

import hybrid_train as ht
from support import InFolder, needs_torch

try:
    import torch
    from torch import nn
    from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler
except ImportError:
    torch, Dataset, IterableDataset, Sampler = None, object, object, object

KEYS = dict(lr=1e-2, device="cpu", lr_warmup_steps=0)


class Points(Dataset):
    """50 points with a little noise of torch, Python or NumPy, as an augmentation adds it."""

    def __init__(self, noise="torch"):
        self.noise = noise
        self.x = torch.randn(50, 6, generator=torch.Generator().manual_seed(7))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        noise = random.gauss(0, 0.1) if self.noise == "python" else 0.1 * torch.randn(())
        return {"x": self.x[i] + noise, "y": self.x[i].sum(), "worker": os.getpid()}


class Streamed(IterableDataset):
    """The points in an order of its own in each epoch."""

    def __iter__(self):
        points = Points()
        for i in torch.randperm(len(points)).tolist():
            yield points[i]


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(6, 1)

    def loss(self, batch):
        x = batch["x"]
        for layer in self.layers:
            x = self.drop(layer(x).tanh())
        return (self.head(x)[:, 0] - batch["y"]).square().mean(), len(x)


def trained(data, steps=30, now=None, seen=None, **keys):
    """The losses and weights of a run over the data; `now`: only so many steps of it."""
    module, losses = Linear(), []
    torch.manual_seed(0)

    def loss(batch):
        if seen is not None:
            seen.append(batch)
        torch.manual_seed(int(batch["x"].sum().item() * 1e6) % 2**31)  # dropout by batch
        return module.loss(batch)

    with ht.Loop(module, steps=steps, **{**KEYS, **keys}) as loop:
        while not loop.is_over and (now is None or len(losses) < now):
            losses.append(loop.step(loss, data=data).loss)
    return losses, [p.detach().clone() for p in module.parameters()]


def loader(data=None, workers=0, **keys):
    if workers:
        keys = {"multiprocessing_context": "fork", **keys}
    return DataLoader(data or Points(), 8, shuffle=not isinstance(data, IterableDataset), num_workers=workers, **keys)


@needs_torch
class Loaders(InFolder):
    def same(self, one, other):
        self.assertEqual(one[0], other[0])
        for a, b in zip(one[1], other[1]):
            self.assertTrue(torch.equal(a, b))

    def test_a_list_gives_its_batches_by_number(self):
        batches = list(loader())
        module = Linear().eval()
        with ht.Loop(module, steps=20, **KEYS) as loop:
            expected = [loop.step(lambda n: module.loss(batches[n % 7])).loss for _ in range(20)]
        module = Linear().eval()
        with ht.Loop(module, steps=20, **KEYS) as loop:
            self.assertEqual([loop.step(module.loss, data=batches).loss for _ in range(20)], expected)

    def test_each_epoch_has_every_sample_once_in_an_order_of_its_own(self):
        seen = []
        trained(loader(), steps=21, seen=seen)
        self.assertEqual([len(b["x"]) for b in seen], [8, 8, 8, 8, 8, 8, 2] * 3)
        epochs = [torch.cat([b["y"] for b in seen[i : i + 7]]) for i in (0, 7, 14)]
        for one in epochs:
            self.assertTrue(torch.equal(one.sort()[0], Points().x.sum(1).sort()[0]))
        self.assertFalse(torch.equal(epochs[0], epochs[1]))

    def test_workers_give_the_same_batches(self):
        for noise in ("torch", "python"):
            expected, seen = trained(loader(Points(noise))), []
            self.same(trained(loader(Points(noise), 2, persistent_workers=True), seen=seen), expected)
            self.assertNotIn(os.getpid(), {pid for b in seen for pid in b["worker"].tolist()})
            own = trained(loader(Points(noise), generator=torch.Generator()))
            self.same(trained(loader(Points(noise), 1, generator=torch.Generator(), prefetch_factor=3)), own)

    def test_a_resumed_run_goes_on_with_the_same_batches(self):
        for workers in (0, 2):
            for kind in (Points, Streamed):
                with self.subTest(workers=workers, kind=kind.__name__):
                    expected = trained(loader(kind(), workers))
                    out = f"{kind.__name__}{workers}"
                    first, _ = trained(loader(kind(), workers), now=11, out=out, resume=True)
                    rest, weights = trained(loader(kind(), workers), out=out, resume=True)
                    self.same((first + rest, weights), expected)

    def test_prediction_asks_ahead_and_goes_back(self):
        keys = dict(steps=160, predictor="outer")
        for grad_accum_steps in (1, 3):
            keys["grad_accum_steps"] = grad_accum_steps
            seen = []
            expected = trained(loader(), seen=seen, **keys)
            self.assertGreater(len(seen), 160 * grad_accum_steps)  # it asked
            self.same(trained(loader(workers=1), **keys), expected)
            trained(loader(Streamed()), **keys)
        expected = trained(loader(), can_rewind=True, **keys)
        self.same(trained(loader(workers=1), can_rewind=True, **keys), expected)

    def test_a_short_last_batch_counts_by_its_size(self):
        module = Linear().eval()
        with ht.Loop(module, steps=1, grad_accum_steps=7, **KEYS) as loop:
            batched = loop.step(module.loss, data=loader(Points("python"))).loss
        module, whole = Linear().eval(), DataLoader(Points("python"), 50)
        with ht.Loop(module, steps=1, **KEYS) as loop:
            self.assertAlmostEqual(batched, loop.step(module.loss, data=whole).loss, delta=0.05)

    def test_blocks(self):
        plain = trained(loader())
        blocks = trained(loader(workers=1), blocks=True)
        for a, b in zip(plain[0], blocks[0]):
            self.assertAlmostEqual(a, b, delta=1e-6)

    def test_random_numbers_of_the_program_stay_as_they_are(self):
        module = Linear()
        torch.manual_seed(3)
        random.seed(3)
        expected = torch.get_rng_state(), random.getstate()
        with ht.Loop(module.eval(), steps=9, **KEYS) as loop:
            loop.run(module.loss, data=loader(workers=1, generator=torch.Generator()))
            loop_state = torch.get_rng_state(), random.getstate()
        self.assertTrue(torch.equal(loop_state[0], expected[0]))
        self.assertEqual(loop_state[1], expected[1])

    def test_samplers(self):
        points, generator = Points(), torch.Generator()
        sampler = BatchSampler(RandomSampler(points, generator=generator), 8, True)
        seen = []
        one = trained(DataLoader(points, batch_sampler=sampler), steps=12, seen=seen)
        self.same(trained(DataLoader(points, batch_sampler=sampler), steps=12), one)
        self.assertEqual({len(b["x"]) for b in seen}, {8})

        class Epochs(Sampler):
            epoch = 0

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __len__(self):
                return 50

            def __iter__(self):
                return iter([(i * 7 + self.epoch) % 50 for i in range(50)])

        seen = []
        trained(DataLoader(points, 25, sampler=Epochs()), steps=4, seen=seen)
        self.assertFalse(torch.equal(seen[0]["y"], seen[2]["y"]))

        class Unknown(Epochs):
            def __iter__(self):
                return iter(random.SystemRandom().sample(range(50), 50))

        with self.assertRaisesRegex(ht.InputError, "Unknown of data gives another order"):
            trained(DataLoader(points, 8, sampler=Unknown()))

    def test_ranks_load_their_own_batches(self):
        from hybrid_train._data import Batches

        def make(source, is_ours):
            return Batches(source, 3, False, 4, "cpu", is_ours)

        everything, seen = make(loader(), None), []
        for workers in (0, 1):
            for rank in (0, 1):
                ours = make(loader(workers=workers), lambda number, rank=rank: number // 2 % 2 == rank)
                for number in (0, 1, 4, 5, 8, 9, 10, 16, 17, 3):  # some are of the other rank, as a guard asks
                    batch = ours.get(number, True)
                    self.assertTrue(torch.equal(batch["x"], everything.get(number, True)["x"]))
                    seen.append(batch["y"].sum().item())
        self.assertEqual(len(set(seen)), 10)
        sampler = torch.utils.data.DistributedSampler(Points(), 2, 0)
        with self.assertRaisesRegex(ht.InputError, "DistributedSampler, but the loop itself divides"):
            make(DataLoader(Points(), 8, sampler=sampler), lambda number: True)

    def test_a_worker_may_prepare_its_dataset(self):
        def prepare(worker):
            torch.utils.data.get_worker_info().dataset.x = torch.ones(50, 6)

        seen = []
        trained(loader(workers=1, worker_init_fn=prepare), steps=2, seen=seen)
        self.assertTrue(torch.equal(seen[0]["y"], torch.full((8,), 6.0)))

    def test_data_that_cannot_be_used(self):
        for data, said in (
            ({"x": 1}, "data is a dict; expected a DataLoader"),
            (5, "data is a int; expected"),
            ([], "no micro-batches"),
            (DataLoader([], 8), "no micro-batches"),
            (iter([]), "no micro-batches"),
        ):
            with self.assertRaisesRegex(ht.InputError, said):
                trained(data)
        with self.assertRaisesRegex(ht.InputError, "can_rewind=True needs data that can go back"):
            trained(loader(Streamed()), can_rewind=True)
        with self.assertRaisesRegex(ht.InputError, "data ended after 7 micro-batches, and an iterator"):
            trained(iter(list(loader())))

    def test_an_error_in_a_dataset_leaves_the_loop_usable(self):
        class Fails(Points):
            is_broken = True

            def __getitem__(self, i):
                if self.is_broken:
                    raise KeyError("mine")
                return super().__getitem__(i)

        data, module = Fails(), Linear()
        with ht.Loop(module, blocks=True, steps=3, **KEYS) as loop:
            with self.assertRaisesRegex(KeyError, "mine"):
                loop.step(module.loss, data=loader(data))
            data.is_broken = False
            self.assertEqual(loop.step(module.loss, data=loader(data)).step, 1)


if __name__ == "__main__":
    unittest.main()
